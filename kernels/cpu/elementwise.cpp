// Kernels in which every element stands alone: silu_mul, add, add_bias, copy_groups, gate_mul,
// silu, select_rows.
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

void SiluMulRows(const SiluMulParams& p, uint32_t begin, uint32_t end) {
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    const float* gate = p.x + row * p.x_stride;
    const float* up = gate + p.n;
    float* y = p.y + row * p.y_stride;
    for (size_t i = 0; i < p.n; i += 16) {
      StoreUpTo(Mul(Silu16(LoadUpTo(gate, i, p.n)), LoadUpTo(up, i, p.n)), y, i, p.n);
    }
  }
}

void AddRow(const float* x, float* y, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) Store16(Add(Load16(y + i), Load16(x + i)), y + i);
  for (; i < n; ++i) y[i] += x[i];
}

template <bool kSilu>
void GateGroup(const float* x, const float* gate, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) {
    const F16 g = LoadUpTo(gate, i, n);
    StoreUpTo(Mul(LoadUpTo(x, i, n), kSilu ? Silu16(g) : Sigmoid16(g)), y, i, n);
  }
}

void GateMulRows(const GateMulParams& p, uint32_t begin, uint32_t end) {
  const auto act = p.silu != 0 ? GateGroup<true> : GateGroup<false>;
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    for (uint64_t g = 0; g < p.groups; ++g) {
      act(p.x + row * p.x_stride + g * p.x_group_stride,
          p.gate + row * p.gate_stride + g * p.gate_group_stride,
          p.y + row * p.y_stride + g * p.y_group_stride, p.n);
    }
  }
}

void SiluRows(const SiluParams& p, uint32_t begin, uint32_t end) {
  const F16 scale = Set16(p.scale);
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    const float* x = p.x + row * p.x_stride;
    float* y = p.y + row * p.y_stride;
    for (size_t i = 0; i < p.n; i += 16) {
      StoreUpTo(Silu16(Mul(LoadUpTo(x, i, p.n), scale)), y, i, p.n);
    }
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(SiluMulRows);
HWY_EXPORT(AddRow);
HWY_EXPORT(GateMulRows);
HWY_EXPORT(SiluRows);

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

ATLAS_CPU_KERNEL(copy_groups, CopyGroupsParams) {
  for (uint64_t row = begin; row < std::min(end, *params.row_count); ++row) {
    for (uint64_t g = 0; g < params.groups; ++g) {
      std::memcpy(params.y + row * params.y_stride + g * params.y_group_stride,
                  params.x + row * params.x_stride + g * params.x_group_stride,
                  params.n * sizeof(float));
    }
  }
}

ATLAS_CPU_KERNEL(gate_mul, GateMulParams) { HWY_DYNAMIC_DISPATCH(GateMulRows)(params, begin, end); }

ATLAS_CPU_KERNEL(silu, SiluParams) { HWY_DYNAMIC_DISPATCH(SiluRows)(params, begin, end); }

ATLAS_CPU_KERNEL(select_rows, SelectRowsParams) {
  for (uint64_t j = begin; j < std::min(end, *params.row_count); ++j) {
    std::memcpy(params.y + j * params.y_stride, params.x + params.index[j] * params.x_stride,
                params.n * sizeof(float));
  }
}

}  // namespace atlas::kernels::cpu
#endif
