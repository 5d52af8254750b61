"""Cuts the EXL3 decoding vectors to what the tests read, and adds a checksum of each codebook.

    make_vectors.py exl3_vectors.json vectors.json

The input holds tiles, rows and a small matrix with their decoded values, computed by two programs
that share no code. The checksums are FNV-1a 64 over 65536 little-endian float16 values, of tables
that this script computes and whose SHA-256 it compares with the input's.
"""
import hashlib
import json
import sys

import numpy as np


def codebook(name):
    states = np.arange(65536, dtype=np.uint64)
    if name == "mul1":
        u = (states * 0x83DCD12D) & 0xFFFFFFFF
        total = sum((u >> shift) & 255 for shift in (0, 8, 16, 24)).astype(np.float64)
        scale, bias = (np.array([x], np.uint16).view(np.float16)[0] for x in (0x1EEE, 0xC931))
        return ((total + 1024) * np.float64(scale) + np.float64(bias)).astype(np.float16)
    u = states * 0xCBAC1FED if name == "mcg" else states * 89226354 + 64248484
    v = (u & 0x8FFF8FFF) ^ 0x3B603B60
    halves = [(v >> shift & 0xFFFF).astype(np.uint16).view(np.float16) for shift in (0, 16)]
    return halves[0] + halves[1]


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return f"{value:016x}"


vectors = json.load(open(sys.argv[1]))
checksums = {}
for name, expected in vectors["codebook_sha256_of_65536_le_u16"].items():
    data = codebook(name).astype("<f2").tobytes()
    assert hashlib.sha256(data).hexdigest() == expected, name
    checksums[name] = fnv(data)
tiles = []
for tile in vectors["tiles"] + vectors["extra_tiles_mul1_only"]:
    tiles.append({"bits": tile["K"], "bytes": tile["stored_le_bytes_hex"].replace(" ", ""),
                  "states": tile["states_hex"],
                  "values": {name: " ".join(rows)
                             for name, rows in tile["values_fp16_hex_rows"].items()}})
rows = [{"bits": row["K"], "words": row["words_u16_hex"], "values": row["codebook_fp16_hex"]}
        for row in vectors["ngram_rows"]]
linear = vectors["linear_128x128_K2_mul1"]
matrix = {"words": " ".join(" ".join(tiles) if isinstance(tiles, list) else tiles
                            for tiles in linear["trellis_u32_hex"]),
          "suh": linear["suh_fp16_hex"], "svh": linear["svh_fp16_hex"],
          "x": linear["x_fp16_hex"], "y": linear["y_float64"]}
json.dump({"codebooks": checksums, "tiles": tiles, "rows": rows, "matrix": matrix},
          open(sys.argv[2], "w"), indent=0)
