// Products with NVFP4 weights: kernels/common/gpu/linear_nvfp4.h built for h200.
#include "kernels/common/gpu/linear_nvfp4.h"

namespace atlas::kernels {
ATLAS_PRODUCT_KERNELS(nvfp4, Nvfp4Format)
}  // namespace atlas::kernels
