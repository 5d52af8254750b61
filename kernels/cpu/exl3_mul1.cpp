// EXL3 weights of codebook MUL1.
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/exl3_mul1.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/exl3_product-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

void product_mul1(const Exl3ProductParams& params, uint32_t begin, uint32_t end) {
  exl3_product<Exl3Codebook::kMul1>(params, begin, end);
}
void gather_mul1(const Exl3GatherParams& params, uint32_t begin, uint32_t end) {
  exl3_gather<Exl3Codebook::kMul1>(params, begin, end);
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(product_mul1);
HWY_EXPORT(gather_mul1);

ATLAS_CPU_KERNEL(exl3_product_mul1, Exl3ProductParams) {
  HWY_DYNAMIC_DISPATCH(product_mul1)(params, begin, end);
}

ATLAS_CPU_KERNEL(exl3_gather_mul1, Exl3GatherParams) {
  HWY_DYNAMIC_DISPATCH(gather_mul1)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
