// Products of block formats in the contract "f32": float32 rows, decoded weights.
#include "kernels/cpu/product_kernels.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_decoded.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_decoded-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

ATLAS_CPU_PRODUCT(linear_q4_0_f32, grouped_q4_0_f32, DecodedProduct<kPackedQ4_0>)
ATLAS_CPU_PRODUCT(linear_q4_1_f32, grouped_q4_1_f32, DecodedProduct<kPackedQ4_1>)
ATLAS_CPU_PRODUCT(linear_q5_0_f32, grouped_q5_0_f32, DecodedProduct<kPackedQ5_0>)
ATLAS_CPU_PRODUCT(linear_q5_1_f32, grouped_q5_1_f32, DecodedProduct<kPackedQ5_1>)
ATLAS_CPU_PRODUCT(linear_q8_0_f32, grouped_q8_0_f32, DecodedProduct<kPackedQ8_0>)
ATLAS_CPU_PRODUCT(linear_q4_k_f32, grouped_q4_k_f32, DecodedProduct<kPackedQ4_K>)
ATLAS_CPU_PRODUCT(linear_q5_k_f32, grouped_q5_k_f32, DecodedProduct<kPackedQ5_K>)
ATLAS_CPU_PRODUCT(linear_q6_k_f32, grouped_q6_k_f32, DecodedProduct<kPackedQ6_K>)

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
ATLAS_CPU_PRODUCT_KERNELS(linear_q4_0_f32, grouped_q4_0_f32)
ATLAS_CPU_PRODUCT_KERNELS(linear_q4_1_f32, grouped_q4_1_f32)
ATLAS_CPU_PRODUCT_KERNELS(linear_q5_0_f32, grouped_q5_0_f32)
ATLAS_CPU_PRODUCT_KERNELS(linear_q5_1_f32, grouped_q5_1_f32)
ATLAS_CPU_PRODUCT_KERNELS(linear_q8_0_f32, grouped_q8_0_f32)
ATLAS_CPU_PRODUCT_KERNELS(linear_q4_k_f32, grouped_q4_k_f32)
ATLAS_CPU_PRODUCT_KERNELS(linear_q5_k_f32, grouped_q5_k_f32)
ATLAS_CPU_PRODUCT_KERNELS(linear_q6_k_f32, grouped_q6_k_f32)

}  // namespace atlas::kernels::cpu
#endif
