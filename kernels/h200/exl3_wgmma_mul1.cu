// Products of many rows with EXL3 weights of codebook mul1 by wgmma, a variant of exl3_many that no
// other platform has: kernels/common/gpu/exl3_wgmma.h built for h200.
#include "kernels/common/gpu/exl3_wgmma.h"

namespace atlas::kernels {
ATLAS_EXL3_WGMMA(mul1, Exl3Codebook::kMul1)
}  // namespace atlas::kernels
