// Products of many rows with bf16 weights by wgmma, variants of linear_bf16_many and
// grouped_bf16_many that no other platform has: kernels/common/gpu/product_wgmma.h built for h200.
#include "kernels/common/gpu/linear_float.h"
#include "kernels/common/gpu/product_wgmma.h"

namespace atlas::kernels {
ATLAS_WGMMA_PRODUCTS(bf16, FloatFormat<FloatLayout::kBF16>)
}  // namespace atlas::kernels
