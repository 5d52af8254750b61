"""Makes blocks.bin: for each GGUF block type some blocks and what the `gguf` package decodes them to.

Record: name (8 bytes, NUL padded), u32 block bytes, u32 elements of a block, u32 blocks, the blocks,
then the elements as little-endian float32. Run: python make_blocks.py (needs gguf and numpy).
"""
import pathlib
import struct

import gguf
import numpy as np

BLOCKS = 6
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Byte offsets of the float16 fields: random bytes there would decode to infinities and NaN.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def main():
    random = np.random.default_rng(20261129)
    out = bytearray()
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for at in HALVES[name]:
            halves = (random.standard_normal(BLOCKS) * 0.05).astype(np.float16)
            halves[BLOCKS - 1] = np.float16(6e-8)  # a subnormal
            blocks[:, at:at + 2] = halves.view(np.uint8).reshape(BLOCKS, 2)
        values = gguf.quants.dequantize(blocks, kind).astype("<f4")
        assert values.shape == (BLOCKS, elements) and np.isfinite(values).all()
        out += struct.pack("<8sIII", name.lower().encode(), size, elements, BLOCKS)
        out += blocks.tobytes() + values.tobytes()
    pathlib.Path(__file__).with_name("blocks.bin").write_bytes(out)


if __name__ == "__main__":
    main()
