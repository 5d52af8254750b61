// Products of weights that are floating-point numbers.
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_float.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_float-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

void linear_f32(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<FloatProduct<FloatWeights<FloatLayout::kF32>>>(params, begin, end);
}

void linear_f16(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<FloatProduct<FloatWeights<FloatLayout::kF16>>>(params, begin, end);
}

void linear_bf16(const LinearParams& params, uint32_t begin, uint32_t end) {
  linear<FloatProduct<FloatWeights<FloatLayout::kBF16>>>(params, begin, end);
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
HWY_EXPORT(linear_f32);
HWY_EXPORT(linear_f16);
HWY_EXPORT(linear_bf16);

ATLAS_CPU_KERNEL(linear_f32, LinearParams) { HWY_DYNAMIC_DISPATCH(linear_f32)(params, begin, end); }

ATLAS_CPU_KERNEL(linear_f16, LinearParams) { HWY_DYNAMIC_DISPATCH(linear_f16)(params, begin, end); }

ATLAS_CPU_KERNEL(linear_bf16, LinearParams) {
  HWY_DYNAMIC_DISPATCH(linear_bf16)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
