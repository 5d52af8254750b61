"""Makes exl3.safetensors, nvfp4.safetensors, fp8.safetensors and golden.json: one tiny model as atlas-quantize
writes it, and what Python reads in these files.

The source model is written by the package safetensors. What the tool made of it is opened by that package again,
and decoded here: e2m1 and e4m3 by ml_dtypes, EXL3 by the format's description in numpy. Every decoded weight is
compared with its source. golden.json has for each module its format, its shape, and the CRC-32 of what decodes
exactly (float32, little-endian, row-major): the numbers of NVFP4 and FP8 [outputs, inputs], and EXL3's codebook
values before scales and transforms [padded inputs, padded outputs]; for EXL3 also the weight's sum of squares and
the elements on a diagonal, which no order of sums changes by more than 1e-6. No size is a multiple of 128.

Run: python make_golden.py PATH_OF_ATLAS_QUANTIZE (needs ml_dtypes, numpy and safetensors).
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zlib

import ml_dtypes
import numpy as np
from safetensors import deserialize
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD = 144, 176, 64, 4, 2, 36
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
          "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": HEADS,
          "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "intermediate_size": INNER, "vocab_size": VOCAB,
          "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "eos_token_id": 2, "tie_word_embeddings": False}
LAYER = "model.layers.0."
MATRICES = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN),
            LAYER + "self_attn.q_proj": (HEADS * HEAD, HIDDEN), LAYER + "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
            LAYER + "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN), LAYER + "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
            LAYER + "mlp.gate_proj": (INNER, HIDDEN), LAYER + "mlp.up_proj": (INNER, HIDDEN),
            LAYER + "mlp.down_proj": (HIDDEN, INNER)}
FORMATS = {"exl3": ["--bits", "2.5", "--no-feedback"], "nvfp4": ["--scales", "four-over-six"], "fp8": []}
CODEBOOKS = {"mul1": 0x83DCD12D, "mcg": 0xCBAC1FED}


def write_source(folder):
    random = np.random.default_rng(7)
    tensors = {name + ".weight": (random.standard_normal(shape) * 0.05).astype(ml_dtypes.bfloat16)
               for name, shape in MATRICES.items()}
    for norm in ("model.norm", LAYER + "input_layernorm", LAYER + "post_attention_layernorm"):
        tensors[norm + ".weight"] = np.ones(HIDDEN, ml_dtypes.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return {name: tensors[name + ".weight"].astype(np.float64) for name in MATRICES}


def crc(numbers):
    return zlib.crc32(np.ascontiguousarray(numbers.astype("<f4")).tobytes())


def decode_nvfp4(tensors, module):
    packed = tensors[module + ".weight"]
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    scales = np.repeat(tensors[module + ".weight_scale"].astype(np.float64), 16, axis=1)
    return numbers * scales * np.float64(tensors[module + ".weight_scale_2"])


def decode_fp8(tensors, module):
    codes = tensors[module + ".weight"].astype(np.float64)
    scales = tensors[module + ".weight_scale_inv"].astype(np.float64)
    return codes * np.repeat(np.repeat(scales, 128, 0)[: codes.shape[0]], 128, 1)[:, : codes.shape[1]]


def codebook_values(tensors, module):
    """Values of all states; the multiplier is the marker's."""
    states = np.arange(65536, dtype=np.uint64)
    marker = next((name for name in CODEBOOKS if f"{module}.{name}" in tensors), None)
    if marker is not None:
        stored = int(tensors[f"{module}.{marker}"]) % 2**32
        assert stored == CODEBOOKS[marker], stored
    product = states * CODEBOOKS[marker] if marker else states * 89226354 + 64248484
    u = (product % 2**32).astype(np.uint32)
    if marker == "mul1":
        total = sum((u >> 8 * i & 255).astype(np.float64) for i in range(4)) + 1024
        factor, shift = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float64)
        return (total * factor + shift).astype(np.float16).astype(np.float64)
    v = (u & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)
    low, high = (v & 0xFFFF).astype(np.uint16), (v >> 16).astype(np.uint16)
    return (low.view(np.float16) + high.view(np.float16)).astype(np.float64)


def decode_exl3(tensors, module):
    trellis = tensors[module + ".trellis"].view(np.uint16)
    rows, columns, words = trellis.shape
    bits = words // 16
    assert words == 16 * bits
    # Of each pair of stored units the second comes first, highest bits first.
    units = trellis.reshape(rows * columns, words // 2, 2)[:, :, ::-1].reshape(rows * columns, words)
    ring = (units[:, :, None] >> np.arange(15, -1, -1, dtype=np.uint16) & 1).reshape(rows * columns, -1)
    ends = (np.arange(256) + 1) * bits
    windows = ring[:, (ends[:, None] - 16 + np.arange(16)) % (256 * bits)].astype(np.uint32)
    states = (windows << np.arange(15, -1, -1, dtype=np.uint32)).sum(axis=2)
    t = np.arange(256)
    lane, j = t // 8, t % 8
    row, column = 2 * (lane % 4) + j % 2 + 8 * (j // 2 % 2), lane // 4 + 8 * (j // 4)
    tiles = np.zeros((rows * columns, 16, 16))
    tiles[:, row, column] = codebook_values(tensors, module)[states]
    inner = tiles.reshape(rows, columns, 16, 16).transpose(0, 2, 1, 3).reshape(16 * rows, 16 * columns)
    signs = np.array([[1 - 2 * (bin(r & c).count("1") % 2) for c in range(128)] for r in range(128)])
    hadamard = signs / np.sqrt(128)
    k, n = inner.shape
    outer = np.einsum("ab,xbn->xan", hadamard, inner.reshape(k // 128, 128, n)).reshape(k, n)
    outer = np.einsum("kxa,ab->kxb", outer.reshape(k, n // 128, 128), hadamard).reshape(k, n)
    scales = [tensors[f"{module}.{name}"].astype(np.float64) for name in ("suh", "svh")]
    outer = scales[0][:, None] * outer * scales[1]
    wide, high = MATRICES[module][1], MATRICES[module][0]
    assert (scales[1][high:] == 0).all()  # outputs of the padding
    return inner, outer[:wide, :high].T


def read(path):
    types = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F16": np.float16, "F32": np.float32,
             "I16": np.int16, "I32": np.int32, "U8": np.uint8}
    return {name: np.frombuffer(one["data"], types[one["dtype"]]).reshape(one["shape"])
            for name, one in deserialize(path.read_bytes())}


def error(found, source):
    return np.linalg.norm(found - source) / np.linalg.norm(source)


def describe(kind, tensors, source):
    modules = {}
    for module, weight in source.items():
        facts = {"shape": list(weight.shape)}
        plain = tensors.get(module + ".weight")
        if module + ".trellis" in tensors:
            inner, outer = decode_exl3(tensors, module)
            bits = tensors[module + ".trellis"].shape[2] // 16
            assert error(outer, weight) < 1.3 * 2.0**-bits, (module, error(outer, weight))
            facts |= {"format": "exl3", "bits": bits, "inner_crc32": crc(inner),
                      "squares": float((outer**2).sum()),
                      "diagonal": [float(outer[i, i]) for i in range(0, min(outer.shape), 9)]}
        elif plain.dtype == ml_dtypes.bfloat16:
            assert (plain.astype(np.float64) == weight).all(), module
            facts |= {"format": "bf16"}
        else:
            numbers = (decode_nvfp4 if kind == "nvfp4" else decode_fp8)(tensors, module)
            assert error(numbers, weight) < (0.12 if kind == "nvfp4" else 0.04), (module, error(numbers, weight))
            facts |= {"format": kind, "crc32": crc(numbers)}
        modules[module] = facts
    return modules


def main():
    golden = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "source").mkdir()
        source = write_source(folder / "source")
        for kind, options in FORMATS.items():
            out = folder / kind
            subprocess.run([sys.argv[1], "--model", folder / "source", "--out", out, "--format", kind, "--quiet",
                            *options], check=True, stdout=subprocess.DEVNULL)
            shutil.copy(out / "model.safetensors", HERE / f"{kind}.safetensors")
            golden[kind] = describe(kind, read(out / "model.safetensors"), source)
            config = json.loads((out / "config.json").read_text())["quantization_config"]
            print(kind, {f["format"] for f in golden[kind].values()}, config["quant_method"])
    (HERE / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


main()
