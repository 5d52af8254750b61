// Products with EXL3 weights of codebook mul1: kernels/common/gpu/exl3_kernels.h built for gb10.
#include "kernels/common/gpu/exl3_kernels.h"

namespace atlas::kernels {
ATLAS_EXL3_KERNELS(mul1, Exl3Codebook::kMul1)
ATLAS_EXL3_FEW(mul1_k3, Exl3Codebook::kMul1, 6, 5)
ATLAS_EXL3_FEW(mul1_k4, Exl3Codebook::kMul1, 8, 6)
ATLAS_EXL3_FEW(mul1_k5, Exl3Codebook::kMul1, 10, 5)
ATLAS_EXL3_FEW(mul1_k6, Exl3Codebook::kMul1, 12, 5)
}  // namespace atlas::kernels
