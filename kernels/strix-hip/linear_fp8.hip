// Products with FP8 weights: kernels/common/gpu/linear_fp8.h built for strix-hip.
#include "kernels/common/gpu/linear_fp8.h"

namespace atlas::kernels {
ATLAS_PRODUCT_KERNELS(fp8, Fp8Format<Fp8Scales::kRow>)
ATLAS_PRODUCT_KERNELS(fp8_b128, Fp8Format<Fp8Scales::kBlock>)
ATLAS_PRODUCT_KERNELS(mxfp8, Fp8Format<Fp8Scales::kMx>)
}  // namespace atlas::kernels
