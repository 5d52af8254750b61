// EXL3 weights of codebook 3INST.
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/exl3_3inst.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/exl3_product-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

void product_3inst(const Exl3ProductParams& params, uint32_t begin, uint32_t end) {
  exl3_product<Exl3Codebook::k3Inst>(params, begin, end);
}
void gather_3inst(const Exl3GatherParams& params, uint32_t begin, uint32_t end) {
  exl3_gather<Exl3Codebook::k3Inst>(params, begin, end);
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(product_3inst);
HWY_EXPORT(gather_3inst);

ATLAS_CPU_KERNEL(exl3_product_3inst, Exl3ProductParams) {
  HWY_DYNAMIC_DISPATCH(product_3inst)(params, begin, end);
}

ATLAS_CPU_KERNEL(exl3_gather_3inst, Exl3GatherParams) {
  HWY_DYNAMIC_DISPATCH(gather_3inst)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
