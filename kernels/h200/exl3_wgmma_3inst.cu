// Products of many rows with EXL3 weights of codebook 3inst by wgmma, a variant of exl3_many that
// no other platform has: kernels/common/gpu/exl3_wgmma.h built for h200.
#include "kernels/common/gpu/exl3_wgmma.h"

namespace atlas::kernels {
ATLAS_EXL3_WGMMA(3inst, Exl3Codebook::k3Inst)
}  // namespace atlas::kernels
