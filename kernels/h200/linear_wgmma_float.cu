// Products of many rows with bf16 and f16 weights by wgmma, variants of linear_bf16_many,
// linear_half_many and their like that no other platform has: kernels/common/gpu/product_wgmma.h
// built for h200.
#include "kernels/common/gpu/linear_half.h"
#include "kernels/common/gpu/product_wgmma.h"

namespace atlas::kernels {
ATLAS_WGMMA_PRODUCTS(bf16, FloatFormat<FloatLayout::kBF16>)
ATLAS_WGMMA_PRODUCTS(half, HalfFormat)
}  // namespace atlas::kernels
