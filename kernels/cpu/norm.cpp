// rms_norm: each row, or each group of a row, by its root mean square.
#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

void NormGroup(const float* x, const float* weight, float* y, size_t n, float epsilon) {
  F16 squares = Set16(0.0f);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 v = Load16(x + i);
    squares = MulAdd(v, v, squares);
  }
  if (i < n) {
    const F16 v = LoadPart16(x + i, n - i, 0.0f);
    squares = MulAdd(v, v, squares);
  }
  const float mean = SumPairwise(squares) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  const F16 scales = Set16(scale);
  for (i = 0; i + 16 <= n; i += 16) {
    Store16(Mul(Mul(Load16(x + i), scales), Load16(weight + i)), y + i);
  }
  for (; i < n; ++i) y[i] = (x[i] * scale) * weight[i];
}

void NormRows(const RmsNormParams& p, uint32_t begin, uint32_t end) {
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    for (uint64_t g = 0; g < p.groups; ++g) {
      NormGroup(p.x + row * p.x_stride + g * p.x_group_stride, p.weight + g * p.weight_group_stride,
                p.y + row * p.y_stride + g * p.y_group_stride, p.n, p.epsilon);
    }
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(NormRows);
ATLAS_CPU_KERNEL(rms_norm, RmsNormParams) { HWY_DYNAMIC_DISPATCH(NormRows)(params, begin, end); }

}  // namespace atlas::kernels::cpu
#endif
