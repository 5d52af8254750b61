#!/usr/bin/env python3
"""Writes the corpora exl3_module, fp8_module and nvfp4_module of quant_module_fuzz.cpp.

  make_module_corpus.py [FOLDER]     FOLDER: corpus, beside this file

Small modules "m" as safetensors, one of each layout that a plugin recognises, and the same layouts as lists of
tensors, whose bytes name entries of the fuzz target's tables.
"""

import json
import random
import struct
import sys
from pathlib import Path

NAMES = ["weight", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_packed", "weight_global_scale",
         "trellis", "suh", "svh", "su", "sv", "mcg", "mul1", "pre_quant_scale", "bias"]
TYPES = ["U8", "F8_E4M3", "F32", "F16", "BF16", "I16", "F8_UE8M0", "I32", "U16", "F8_E5M2"]
SIZES = [0, 1, 2, 3, 4, 5, 8, 16, 17, 20, 24, 32, 40, 48, 64, 127, 128, 129, 256, 300]
ELEMENT = {"U8": 1, "F8_E4M3": 1, "F32": 4, "F16": 2, "BF16": 2, "I16": 2, "I32": 4}

draw = random.Random(7)


def numbers(dtype, count):
    """Finite numbers: a NaN among them has a module refused at once."""
    if dtype == "F32":
        return struct.pack(f"<{count}f", *(draw.uniform(0.01, 0.03) for _ in range(count)))
    if dtype == "F16":
        return struct.pack(f"<{count}e", *(draw.choice([-1, 1]) * draw.uniform(0.5, 2) for _ in range(count)))
    if dtype == "BF16":
        return b"".join(struct.pack("<f", draw.uniform(0.01, 0.03))[2:] for _ in range(count))
    if dtype == "F8_E4M3":
        return bytes(draw.choice([0, 0x80]) | draw.randrange(0x7f) for _ in range(count))
    return draw.randbytes(count * ELEMENT[dtype])


def write_safetensors(path, tensors):
    """tensors: name -> (type, shape) or (type, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, *given) in tensors.items():
        count = 1
        for size in shape:
            count *= size
        content = given[0] if given else numbers(dtype, count)
        header[f"m.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_list(path, tensors):
    """tensors: (name, type, shape); nothing is wrong with any."""
    content = b""
    for name, dtype, shape in tensors:
        content += bytes([NAMES.index(name), TYPES.index(dtype), len(shape), *map(SIZES.index, shape), 0])
    path.write_bytes(content)


def exl3(folder):
    scales = {"suh": ("F16", [128]), "svh": ("F16", [128])}
    mul1 = {"mul1": ("I32", [], struct.pack("<I", 0x83DCD12D))}
    mcg = {"mcg": ("I32", [], struct.pack("<I", 0xCBAC1FED))}
    write_safetensors(folder / "k1_mul1.safetensors", {"trellis": ("I16", [8, 8, 16]), **scales, **mul1})
    write_safetensors(folder / "k1.5_mul1.safetensors", {"trellis": ("I16", [8, 8, 24]), **scales, **mul1})
    write_safetensors(folder / "k1_mcg.safetensors", {"trellis": ("I16", [8, 8, 16]), **scales, **mcg})
    write_safetensors(folder / "k1_signs.safetensors",
                      {"trellis": ("I16", [8, 8, 16]), "su": ("I16", [8]), "sv": ("I16", [8])})
    listed = [("trellis", "I16", [8, 8, 16]), ("suh", "F16", [128]), ("svh", "F16", [128])]
    write_list(folder / "list_3inst", listed)
    write_list(folder / "list_mul1", [*listed, ("mul1", "I32", [])])
    write_list(folder / "list_mcg", [*listed, ("mcg", "I32", [])])


def fp8(folder):
    write_safetensors(folder / "blocks.safetensors",
                      {"weight": ("F8_E4M3", [130, 20]), "weight_scale_inv": ("BF16", [2, 1])})
    write_safetensors(folder / "tensor.safetensors", {"weight": ("F8_E4M3", [20, 24]), "weight_scale": ("F32", [])})
    write_safetensors(folder / "row.safetensors", {"weight": ("F8_E4M3", [20, 24]), "weight_scale": ("F32", [20, 1])})
    exponents = bytes(draw.randrange(118, 123) for _ in range(40))
    write_safetensors(folder / "mx.safetensors",
                      {"weight": ("F8_E4M3", [20, 64]), "weight_scale": ("U8", [20, 2], exponents)})
    write_list(folder / "list_blocks", [("weight", "F8_E4M3", [129, 20]), ("weight_scale_inv", "F32", [2, 1])])
    write_list(folder / "list_tensor", [("weight", "F8_E4M3", [20, 24]), ("weight_scale", "F32", [])])
    write_list(folder / "list_rows", [("weight", "F8_E4M3", [20, 24]), ("weight_scale", "F32", [20, 1])])
    write_list(folder / "list_mx", [("weight", "F8_E4M3", [20, 64]), ("weight_scale", "U8", [20, 2])])


def nvfp4(folder):
    positive = bytes(draw.randrange(0x30, 0x48) for _ in range(80))
    write_safetensors(folder / "modelopt.safetensors",
                      {"weight": ("U8", [20, 32]), "weight_scale": ("F8_E4M3", [20, 4], positive),
                       "weight_scale_2": ("F32", []), "input_scale": ("F32", [])})
    write_safetensors(folder / "compressed.safetensors",
                      {"weight_packed": ("U8", [17, 16]), "weight_scale": ("F8_E4M3", [17, 2], positive[:34]),
                       "weight_global_scale": ("F32", [1]), "input_scale": ("F32", [])})
    write_list(folder / "list_modelopt",
               [("weight", "U8", [17, 32]), ("weight_scale", "F8_E4M3", [17, 4]), ("weight_scale_2", "F32", [])])
    write_list(folder / "list_packed", [("weight_packed", "U8", [17, 32]), ("weight_scale", "F8_E4M3", [17, 4]),
                                        ("weight_global_scale", "F32", [1])])


def main():
    corpus = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("corpus")
    for name, write in {"exl3": exl3, "fp8": fp8, "nvfp4": nvfp4}.items():
        folder = corpus / f"{name}_module"
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)


if __name__ == "__main__":
    main()
