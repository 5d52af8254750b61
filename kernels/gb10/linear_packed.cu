// Products with the block formats of GGUF of 32 elements: kernels/common/gpu/linear_packed.h built
// for gb10.
#include "kernels/common/gpu/linear_packed.h"

namespace atlas::kernels {
ATLAS_PACKED_KERNELS(q4_0, Q4_0)
ATLAS_PACKED_KERNELS(q4_1, Q4_1)
ATLAS_PACKED_KERNELS(q5_0, Q5_0)
ATLAS_PACKED_KERNELS(q5_1, Q5_1)
ATLAS_PACKED_KERNELS(q8_0, Q8_0)
}  // namespace atlas::kernels
