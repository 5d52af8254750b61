// Kernels in which every element stands alone: silu_mul, add, add_bias, select_logit_rows.
#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE F16 SiluMul(const F16& gate, const F16& up) {
  const F16 one = Set16(1.0f);
  const F16 negative = Mul(gate, Set16(-1.0f));
  return Mul(Div(gate, Add(one, Exp16(negative))), up);
}

void SiluMulRows(const SiluMulParams& p, uint32_t begin, uint32_t end) {
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    const float* gate = p.x + row * p.x_stride;
    const float* up = gate + p.n;
    float* y = p.y + row * p.y_stride;
    size_t i = 0;
    for (; i + 16 <= p.n; i += 16) Store16(SiluMul(Load16(gate + i), Load16(up + i)), y + i);
    if (const size_t rest = p.n - i; rest != 0) {
      StorePart16(SiluMul(LoadPart16(gate + i, rest, 0.0f), LoadPart16(up + i, rest, 0.0f)), y + i,
                  rest);
    }
  }
}

void AddRow(const float* x, float* y, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) Store16(Add(Load16(y + i), Load16(x + i)), y + i);
  for (; i < n; ++i) y[i] += x[i];
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(SiluMulRows);
HWY_EXPORT(AddRow);

ATLAS_CPU_KERNEL(silu_mul, SiluMulParams) { HWY_DYNAMIC_DISPATCH(SiluMulRows)(params, begin, end); }

ATLAS_CPU_KERNEL(add, AddParams) {
  for (uint64_t row = begin; row < std::min(end, *params.row_count); ++row) {
    HWY_DYNAMIC_DISPATCH(AddRow)
    (params.x + row * params.x_stride, params.y + row * params.y_stride, params.n);
  }
}

ATLAS_CPU_KERNEL(add_bias, AddBiasParams) {
  for (uint64_t row = begin; row < std::min(end, *params.row_count); ++row) {
    HWY_DYNAMIC_DISPATCH(AddRow)(params.bias, params.y + row * params.y_stride, params.n);
  }
}

ATLAS_CPU_KERNEL(select_logit_rows, SelectLogitRowsParams) {
  const StepControl& control = *params.control;
  for (uint64_t j = begin; j < std::min(end, control.logit_count); ++j) {
    std::memcpy(params.y + j * params.y_stride, params.x + control.logit_rows[j] * params.x_stride,
                params.n * sizeof(float));
  }
}

}  // namespace atlas::kernels::cpu
#endif
