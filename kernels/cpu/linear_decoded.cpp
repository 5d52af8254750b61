// Products of block formats in the contract "f32": float32 rows, decoded weights.
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_decoded.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_decoded-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

void linear_q4_0_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<DecodedProduct<kPackedQ4_0>>(params, begin, end);
}

void linear_q4_1_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<DecodedProduct<kPackedQ4_1>>(params, begin, end);
}

void linear_q5_0_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<DecodedProduct<kPackedQ5_0>>(params, begin, end);
}

void linear_q5_1_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<DecodedProduct<kPackedQ5_1>>(params, begin, end);
}

void linear_q8_0_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<DecodedProduct<kPackedQ8_0>>(params, begin, end);
}

void linear_q4_k_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<DecodedProduct<kPackedQ4_K>>(params, begin, end);
}

void linear_q5_k_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<DecodedProduct<kPackedQ5_K>>(params, begin, end);
}

void linear_q6_k_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<DecodedProduct<kPackedQ6_K>>(params, begin, end);
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
HWY_EXPORT(linear_q4_0_f32);
HWY_EXPORT(linear_q4_1_f32);
HWY_EXPORT(linear_q5_0_f32);
HWY_EXPORT(linear_q5_1_f32);
HWY_EXPORT(linear_q8_0_f32);
HWY_EXPORT(linear_q4_k_f32);
HWY_EXPORT(linear_q5_k_f32);
HWY_EXPORT(linear_q6_k_f32);

ATLAS_CPU_KERNEL(linear_q4_0_f32, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q4_0_f32)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q4_1_f32, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q4_1_f32)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q5_0_f32, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q5_0_f32)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q5_1_f32, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q5_1_f32)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q8_0_f32, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q8_0_f32)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q4_k_f32, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q4_k_f32)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q5_k_f32, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q5_k_f32)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q6_k_f32, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q6_k_f32)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
