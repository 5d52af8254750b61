#!/usr/bin/env python3
"""The baseline of docs/quality.md: a model whose matrices are rounded to the nearest of 2^K levels.

  round_to_nearest.py MODEL_FOLDER QUANTIZED_FOLDER OUT_FOLDER [BLOCK]

MODEL_FOLDER is a checkpoint in safetensors, QUANTIZED_FOLDER what atlas-quantize made of it with
`--format exl3`. The same matrices are rounded, each to as many bits as its trellis has: every BLOCK (128)
inputs of an output lie between their smallest and largest value, two float16 numbers, in 2^K equal steps.
So a weight costs K + 32 / BLOCK bits, a quarter of a bit more than the codes: no less than a trellis with
its scales. OUT_FOLDER is a checkpoint in bf16 with the rounded values; bf16 adds an error of 0.1 to 0.2 %
of a weight. Prints the bits a rounded weight and the mean of the matrices' relative errors.

Needs the Python packages numpy, safetensors and ml_dtypes.
"""

import json
import math
import pathlib
import re
import shutil
import sys

import ml_dtypes  # noqa: F401: gives numpy the type bfloat16
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file


def rounded(weight, bits, block):
    """Rows of `weight`, each cut into blocks of at most `block` inputs."""
    out = np.empty_like(weight)
    for begin in range(0, weight.shape[1], block):
        part = weight[:, begin:begin + block]
        low = part.min(axis=1, keepdims=True).astype(np.float16).astype(np.float32)
        high = part.max(axis=1, keepdims=True).astype(np.float16).astype(np.float32)
        step = np.maximum((high - low) / (2**bits - 1), 1e-30)
        codes = np.clip(np.rint((part - low) / step), 0, 2**bits - 1)
        out[:, begin:begin + block] = codes * step + low
    return out


def place_of(tensors, module):
    """The tensor that holds the matrix `module`, and the part of it."""
    if module + ".weight" in tensors:
        return module + ".weight", slice(None)
    fused = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj", module)
    if fused is None:
        raise SystemExit(f"{module} is not in the model")
    prefix, expert, kind = fused[1], int(fused[2]), fused[3]
    if kind == "down":
        return prefix + ".down_proj", expert
    name = prefix + ".gate_up_proj"
    half = tensors[name].shape[1] // 2
    return name, (expert, slice(0, half) if kind == "gate" else slice(half, None))


def main(model, quantized, out, block):
    tensors = {}
    for path in sorted(pathlib.Path(model).glob("*.safetensors")):
        with safe_open(path, "np") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
    report = json.loads((pathlib.Path(quantized) / "report.json").read_text())
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    errors, bits_sum, weights = [], 0.0, 0
    for entry in report["matrices"]:
        if not entry["quantized"]:
            continue
        module, bits = entry["module"], int(entry["trellis_bits"])
        if module == "lm_head" and "lm_head.weight" not in tensors:  # tied: the head becomes one of its own
            embedding = next(name for name in tensors if name.endswith("embed_tokens.weight"))
            tensors["lm_head.weight"] = tensors[embedding].copy()
            config["tie_word_embeddings"] = False
        name, part = place_of(tensors, module)
        weight = tensors[name][part].astype(np.float32)
        made = rounded(weight, bits, block)
        tensors[name][part] = made.astype(tensors[name].dtype)
        errors.append(np.linalg.norm(weight - made) / max(np.linalg.norm(weight), 1e-30))
        bits_sum += weight.size * bits + weight.shape[0] * math.ceil(weight.shape[1] / block) * 32
        weights += weight.size
    folder = pathlib.Path(out)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for path in pathlib.Path(model).glob("*.json"):
        if "safetensors" not in path.name and path.name != "report.json":
            shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"{len(errors)} matrices, {bits_sum / weights:.3f} bits a weight, "
          f"relative error {np.mean(errors):.4f}")


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 5:
        raise SystemExit(__doc__)
    main(*sys.argv[1:4], int(sys.argv[4]) if len(sys.argv) == 5 else 128)
