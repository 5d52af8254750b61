// Products with EXL3 weights of codebook mcg: kernels/common/gpu/exl3_kernels.h built for gb10.
#include "kernels/common/gpu/exl3_kernels.h"

namespace atlas::kernels {
ATLAS_EXL3_KERNELS(mcg, Exl3Codebook::kMcg)
}  // namespace atlas::kernels
