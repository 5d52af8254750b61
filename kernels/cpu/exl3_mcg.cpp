// EXL3 weights of codebook MCG.
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/exl3_mcg.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/exl3_product-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

void product_mcg(const Exl3ProductParams& params, uint32_t begin, uint32_t end) {
  exl3_product<Exl3Codebook::kMcg>(params, begin, end);
}
void gather_mcg(const Exl3GatherParams& params, uint32_t begin, uint32_t end) {
  exl3_gather<Exl3Codebook::kMcg>(params, begin, end);
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(product_mcg);
HWY_EXPORT(gather_mcg);

ATLAS_CPU_KERNEL(exl3_product_mcg, Exl3ProductParams) {
  HWY_DYNAMIC_DISPATCH(product_mcg)(params, begin, end);
}

ATLAS_CPU_KERNEL(exl3_gather_mcg, Exl3GatherParams) {
  HWY_DYNAMIC_DISPATCH(gather_mcg)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
