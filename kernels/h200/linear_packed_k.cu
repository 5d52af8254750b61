// Products with the block formats of GGUF of 256 elements: kernels/common/gpu/linear_packed.h built
// for h200.
#include "kernels/common/gpu/linear_packed.h"

namespace atlas::kernels {
ATLAS_PACKED_KERNELS(q4_k, Q4_K)
ATLAS_PACKED_KERNELS(q5_k, Q5_K)
ATLAS_PACKED_KERNELS(q6_k, Q6_K)
}  // namespace atlas::kernels
