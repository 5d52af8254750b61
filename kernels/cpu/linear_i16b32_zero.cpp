// Products of the block formats whose blocks have a scale only: Q4_0, Q5_0, Q8_0, Q6_K.
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_i16b32_zero.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_i16b32-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

void linear_q4_0(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<BlockProduct<kPackedQ4_0>>(params, begin, end);
}

void linear_q5_0(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<BlockProduct<kPackedQ5_0>>(params, begin, end);
}

void linear_q8_0(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<BlockProduct<kPackedQ8_0>>(params, begin, end);
}

void linear_q6_k(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<BlockProduct<kPackedQ6_K>>(params, begin, end);
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
HWY_EXPORT(linear_q4_0);
HWY_EXPORT(linear_q5_0);
HWY_EXPORT(linear_q8_0);
HWY_EXPORT(linear_q6_k);

ATLAS_CPU_KERNEL(linear_q4_0, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q4_0)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q5_0, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q5_0)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q8_0, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q8_0)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q6_k, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q6_k)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
