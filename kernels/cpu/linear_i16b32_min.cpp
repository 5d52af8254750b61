// Products of the block formats whose blocks have a scale and a minimum: Q4_1, Q5_1, Q4_K, Q5_K.
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_i16b32_min.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_i16b32-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

void linear_q4_1(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<BlockProduct<kPackedQ4_1>>(params, begin, end);
}

void linear_q5_1(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<BlockProduct<kPackedQ5_1>>(params, begin, end);
}

void linear_q4_k(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<BlockProduct<kPackedQ4_K>>(params, begin, end);
}

void linear_q5_k(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<BlockProduct<kPackedQ5_K>>(params, begin, end);
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
HWY_EXPORT(linear_q4_1);
HWY_EXPORT(linear_q5_1);
HWY_EXPORT(linear_q4_k);
HWY_EXPORT(linear_q5_k);

ATLAS_CPU_KERNEL(linear_q4_1, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q4_1)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q5_1, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q5_1)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q4_k, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q4_k)(params, begin, end);
}

ATLAS_CPU_KERNEL(linear_q5_k, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_q5_k)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
