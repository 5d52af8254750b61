// Products with bf16, f16 and float32 weights: kernels/common/gpu/linear_float.h built for h200.
#include "kernels/common/gpu/linear_float.h"

namespace atlas::kernels {
ATLAS_PRODUCT_KERNELS(bf16, FloatFormat<FloatLayout::kBF16>)
ATLAS_PRODUCT_KERNELS(f16, FloatFormat<FloatLayout::kF16>)
ATLAS_PRODUCT_KERNELS(f32, FloatFormat<FloatLayout::kF32>)
}  // namespace atlas::kernels
