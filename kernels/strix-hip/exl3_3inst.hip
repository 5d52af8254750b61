// Products with EXL3 weights of codebook 3inst: kernels/common/gpu/exl3_kernels.h built for
// strix-hip.
#include "kernels/common/gpu/exl3_kernels.h"

namespace atlas::kernels {
ATLAS_EXL3_KERNELS(3inst, Exl3Codebook::k3Inst)
}  // namespace atlas::kernels
