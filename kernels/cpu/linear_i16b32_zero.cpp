// Products of the block formats whose blocks have a scale only: Q4_0, Q5_0, Q8_0, Q6_K.
#include "kernels/cpu/product_kernels.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_i16b32_zero.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_i16b32-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

ATLAS_CPU_PRODUCT(linear_q4_0, grouped_q4_0, BlockProduct<kPackedQ4_0>)
ATLAS_CPU_PRODUCT(linear_q5_0, grouped_q5_0, BlockProduct<kPackedQ5_0>)
ATLAS_CPU_PRODUCT(linear_q8_0, grouped_q8_0, BlockProduct<kPackedQ8_0>)
ATLAS_CPU_PRODUCT(linear_q6_k, grouped_q6_k, BlockProduct<kPackedQ6_K>)

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
ATLAS_CPU_PRODUCT_KERNELS(linear_q4_0, grouped_q4_0)
ATLAS_CPU_PRODUCT_KERNELS(linear_q5_0, grouped_q5_0)
ATLAS_CPU_PRODUCT_KERNELS(linear_q8_0, grouped_q8_0)
ATLAS_CPU_PRODUCT_KERNELS(linear_q6_k, grouped_q6_k)

}  // namespace atlas::kernels::cpu
#endif
