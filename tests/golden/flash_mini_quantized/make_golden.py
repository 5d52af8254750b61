"""Makes quantized.safetensors, golden.json: weights of tests/data/flash-mini rounded to nearest in NVFP4
and FP8, in the layouts and names that ModelOpt, compressed-tensors and FP8 releases use.

Only tensors that change are stored; a test puts them in the place of those of flash-mini. golden.json has
for each module its format, its shape and the CRC-32 of its numbers (float32, little-endian, row-major) as
ml_dtypes decodes them. Run: python make_golden.py (needs ml_dtypes, numpy, safetensors and torch).
"""
import json
import pathlib
import zlib

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "data" / "flash-mini" / "model.safetensors"
E2M1, E4M3, E8M0 = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
LARGEST_E4M3, LARGEST_E2M1 = 448.0, 6.0

tensors, modules = {}, {}


def torch_of(array):
    if array.dtype == E4M3:
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array)


def store(module, kind, numbers, **parts):
    for name, array in parts.items():
        tensors[f"{module}.{name}"] = torch_of(np.ascontiguousarray(array).reshape(np.shape(array)))
    floats = numbers.astype("<f4")  # float64 products are exact: one rounding
    modules[module] = {"format": kind, "shape": list(floats.shape),
                       "crc32": zlib.crc32(np.ascontiguousarray(floats).tobytes())}


def to_e4m3(values):
    return np.clip(values, -LARGEST_E4M3, LARGEST_E4M3).astype(E4M3)


def nvfp4(module, w, compressed):
    n, k = w.shape
    matrix = np.float32(np.abs(w).max() / (LARGEST_E2M1 * LARGEST_E4M3))
    stored = matrix
    if compressed:
        stored = np.float32(1) / matrix
        matrix = np.float32(1) / stored
    blocks = w.reshape(n, k // 16, 16)
    raw = np.abs(blocks).max(axis=2) / (LARGEST_E2M1 * matrix)
    scales = np.clip(np.where(raw == 0, 1, raw), 2.0**-9, LARGEST_E4M3).astype(E4M3)
    steps = scales.astype(np.float64) * np.float64(matrix)
    codes = np.clip(blocks / steps[:, :, None], -LARGEST_E2M1, LARGEST_E2M1).astype(E2M1)
    numbers = codes.astype(np.float64) * scales.astype(np.float64)[:, :, None] * np.float64(matrix)
    nibbles = codes.reshape(n, k // 2, 2).view(np.uint8) & 15
    packed = nibbles[:, :, 0] | nibbles[:, :, 1] << 4
    if compressed:
        store(module, "nvfp4", numbers.reshape(n, k), weight_packed=packed, weight_scale=scales,
              weight_global_scale=np.array([stored], np.float32))
    else:
        store(module, "nvfp4", numbers.reshape(n, k), weight=packed, weight_scale=scales,
              weight_scale_2=np.array(stored, np.float32), input_scale=np.array(0.01, np.float32))


def spread(scales, n, k):
    """A scale for each element from one for each block of 128 x 128."""
    return np.repeat(np.repeat(scales, 128, axis=0)[:n], 128, axis=1)[:, :k]


def fp8(module, w, scales, of_elements, kind, name):
    wide = of_elements.astype(np.float64)
    codes = to_e4m3(w / wide)
    store(module, kind, codes.astype(np.float64) * wide, **{"weight": codes, name: scales})


def fp8_tensor(module, w):
    scale = np.array(np.abs(w).max() / LARGEST_E4M3, np.float32)
    fp8(module, w, scale, np.broadcast_to(scale, w.shape), "fp8", "weight_scale")


def fp8_rows(module, w):
    scales = (np.abs(w).max(axis=1, keepdims=True) / LARGEST_E4M3).astype(np.float32)
    fp8(module, w, scales, np.broadcast_to(scales, w.shape), "fp8", "weight_scale")


def fp8_blocks(module, w, dtype):
    n, k = w.shape
    padded = np.zeros((-(-n // 128) * 128, -(-k // 128) * 128))
    padded[:n, :k] = np.abs(w)
    largest = padded.reshape(padded.shape[0] // 128, 128, -1, 128).max(axis=(1, 3))
    scales = (largest / LARGEST_E4M3).astype(dtype)
    fp8(module, w, scales, spread(scales.astype(np.float64), n, k), "fp8_b128", "weight_scale_inv")


def mxfp8(module, w):
    n, k = w.shape
    largest = np.abs(w).reshape(n, k // 32, 32).max(axis=2)
    exponents = np.ceil(np.log2(np.maximum(largest, 2.0**-100) / LARGEST_E4M3))
    scales = (exponents + 127).astype(np.uint8)
    wide = np.repeat(scales.view(E8M0).astype(np.float64), 32, axis=1)
    fp8(module, w, scales, wide, "mxfp8", "weight_scale")


def experts(source, prefix, quantize):
    gate_up = source[f"{prefix}.gate_up_proj"].double().numpy()
    down = source[f"{prefix}.down_proj"].double().numpy()
    half = gate_up.shape[1] // 2
    for e in range(gate_up.shape[0]):
        quantize(f"{prefix}.{e}.gate_proj", gate_up[e, :half])
        quantize(f"{prefix}.{e}.up_proj", gate_up[e, half:])
        quantize(f"{prefix}.{e}.down_proj", down[e])


def main():
    source = load_file(MODEL)

    def weight(module):
        return module, source[f"{module}.weight"].double().numpy()

    for layer in range(8):
        compressed = layer >= 6
        experts(source, f"model.layers.{layer}.mlp.experts",
                lambda module, w, c=compressed: nvfp4(module, w, c))
    experts(source, "mtp.layers.0.mlp.experts",
            lambda module, w: fp8_blocks(module, w, ml_dtypes.bfloat16))
    fp8_rows(*weight("model.embed_tokens"))
    fp8_blocks(*weight("lm_head"), np.float32)
    for layer in (0, 1):
        for name in ("in_proj_qkv", "in_proj_z", "out_proj"):
            mxfp8(*weight(f"model.layers.{layer}.linear_attn.{name}"))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        fp8_rows(*weight(f"model.layers.3.self_attn.{name}"))
    fp8_blocks(*weight("model.layers.3.self_attn.indexer.index_qk_proj"), np.float32)
    for name in ("gate_proj", "up_proj", "down_proj"):
        fp8_tensor(*weight(f"model.layers.2.mlp.shared_expert.{name}"))
    save_file(tensors, HERE / "quantized.safetensors")
    (HERE / "quantized.safetensors").chmod(0o644)
    lines = [f"{json.dumps(module)}: {json.dumps(facts)}" for module, facts in modules.items()]
    (HERE / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
