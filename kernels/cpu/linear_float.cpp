// Products of weights that are floating-point numbers.
#include "kernels/cpu/product_kernels.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_float.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_float-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

ATLAS_CPU_PRODUCT(linear_f32, grouped_f32, FloatProduct<FloatWeights<FloatLayout::kF32>>)
ATLAS_CPU_PRODUCT(linear_f16, grouped_f16, FloatProduct<FloatWeights<FloatLayout::kF16>>)
ATLAS_CPU_PRODUCT(linear_bf16, grouped_bf16, FloatProduct<FloatWeights<FloatLayout::kBF16>>)

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
ATLAS_CPU_PRODUCT_KERNELS(linear_f32, grouped_f32)
ATLAS_CPU_PRODUCT_KERNELS(linear_f16, grouped_f16)
ATLAS_CPU_PRODUCT_KERNELS(linear_bf16, grouped_bf16)

}  // namespace atlas::kernels::cpu
#endif
