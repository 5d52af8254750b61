// Products of the block formats whose blocks have a scale and a minimum: Q4_1, Q5_1, Q4_K, Q5_K.
#include "kernels/cpu/product_kernels.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_i16b32_min.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_i16b32-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

ATLAS_CPU_PRODUCT(linear_q4_1, grouped_q4_1, BlockProduct<kPackedQ4_1>)
ATLAS_CPU_PRODUCT(linear_q5_1, grouped_q5_1, BlockProduct<kPackedQ5_1>)
ATLAS_CPU_PRODUCT(linear_q4_k, grouped_q4_k, BlockProduct<kPackedQ4_K>)
ATLAS_CPU_PRODUCT(linear_q5_k, grouped_q5_k, BlockProduct<kPackedQ5_K>)

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
ATLAS_CPU_PRODUCT_KERNELS(linear_q4_1, grouped_q4_1)
ATLAS_CPU_PRODUCT_KERNELS(linear_q5_1, grouped_q5_1)
ATLAS_CPU_PRODUCT_KERNELS(linear_q4_k, grouped_q4_k)
ATLAS_CPU_PRODUCT_KERNELS(linear_q5_k, grouped_q5_k)

}  // namespace atlas::kernels::cpu
#endif
