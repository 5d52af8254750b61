// Products in f16 with bf16 and f16 weights: kernels/common/gpu/linear_half.h built for gb10.
#include "kernels/common/gpu/linear_half.h"

namespace atlas::kernels {
ATLAS_PRODUCT_KERNELS(half, HalfFormat)
}  // namespace atlas::kernels
