// Products of many rows with NVFP4 weights by wgmma, variants of linear_nvfp4_many and
// grouped_nvfp4_many that no other platform has: kernels/common/gpu/product_wgmma.h built for h200.
#include "kernels/common/gpu/linear_nvfp4.h"
#include "kernels/common/gpu/product_wgmma.h"

namespace atlas::kernels {
ATLAS_WGMMA_PRODUCTS(nvfp4, Nvfp4Format)
}  // namespace atlas::kernels
