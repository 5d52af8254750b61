"""Makes tables.bin: the numbers of all codes of e2m1 (16), e4m3 (256) and ue8m0 (256) as ml_dtypes
converts them to little-endian float32. Run: python make_tables.py (needs ml_dtypes and numpy).
"""
import pathlib

import ml_dtypes
import numpy as np


def main():
    bytes_ = np.arange(256, dtype=np.uint8)
    tables = [
        np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype("<f4"),
        bytes_.view(ml_dtypes.float8_e4m3fn).astype("<f4"),
        bytes_.view(ml_dtypes.float8_e8m0fnu).astype("<f4"),
    ]
    pathlib.Path(__file__).with_name("tables.bin").write_bytes(np.concatenate(tables).tobytes())


if __name__ == "__main__":
    main()
