// Products of many rows with FP8 weights by wgmma, variants of linear_fp8_many,
// linear_fp8_b128_many and their like of experts that no other platform has:
// kernels/common/gpu/product_wgmma.h built for h200.
#include "kernels/common/gpu/linear_fp8.h"
#include "kernels/common/gpu/product_wgmma.h"

namespace atlas::kernels {
ATLAS_WGMMA_PRODUCTS(fp8, Fp8Format<Fp8Scales::kRow>)
ATLAS_WGMMA_PRODUCTS(fp8_b128, Fp8Format<Fp8Scales::kBlock>)
}  // namespace atlas::kernels
