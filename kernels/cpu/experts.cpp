// Mixture of experts: route (which experts a row takes), group_experts (the rows of each expert),
// combine_experts (their weighted sum).
#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/experts.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// The `top` largest of n >= top logits into ids and values, descending, lower ids first; a NaN
/// counts as -infinity. Returns whether there was none. Most runs of 16 are passed over at once:
/// of random logits, about top * (1 + log(n / top)) ever enter.
bool LargestLogits(const float* logits, uint32_t n, uint32_t top, uint32_t* ids, float* values) {
  uint32_t held = 0;
  const auto consider = [&](uint32_t id) {
    const float value = logits[id] == logits[id] ? logits[id] : kLowest;
    // Only a larger one displaces the last: an equal one has the higher id.
    if (held == top && !(value > values[top - 1])) return;
    uint32_t place = held < top ? held++ : top - 1;
    for (; place > 0 && values[place - 1] < value; --place) {
      values[place] = values[place - 1];
      ids[place] = ids[place - 1];
    }
    values[place] = value;
    ids[place] = id;
  };
  bool numbers = true;
  for (uint32_t i = 0; i < n; i += 16) {
    const F16 v = LoadUpTo(logits, i, n, kLowest);
    numbers &= AllTrue(Eq(v, v));
    if (held == top && NoneTrue(Lt(Set16(values[top - 1]), v))) continue;
    for (uint32_t id = i; id < std::min(n, i + 16); ++id) consider(id);
  }
  return numbers;
}

/// Sum of e^(x - max) in 16 lanes.
float SumOfExp(const float* x, size_t n, float max) {
  F16 sum = Set16(0.0f);
  for (size_t i = 0; i < n; i += 16) {
    sum = Add(sum, Exp16(Sub(LoadUpTo(x, i, n, kLowest), Set16(max))));
  }
  return SumPairwise(sum);
}

void RouteRows(const RouteParams& p, uint32_t begin, uint32_t end) {
  if (p.top == 0 || p.top > p.experts) return;
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    const float* logits = p.logits + row * p.logits_stride;
    float* weights = p.weights + row * p.top;
    if (!LargestLogits(logits, p.experts, p.top, p.chosen + row * p.top, weights)) {
      std::fill_n(weights, p.top, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const float max = weights[0];
    const F16 sum =
        Set16(p.normalize != 0 ? SumOfExp(weights, p.top, max) : SumOfExp(logits, p.experts, max));
    for (size_t i = 0; i < p.top; i += 16) {
      const F16 v = LoadUpTo(weights, i, p.top, kLowest);
      StoreUpTo(Div(Exp16(Sub(v, Set16(max))), sum), weights, i, p.top);
    }
  }
}

void CombineRows(const CombineExpertsParams& p, uint32_t begin, uint32_t end) {
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    const float* weights = p.weights + row * p.top;
    const uint32_t* place = p.place + row * p.top;
    const float* shared = p.shared != nullptr ? p.shared + row * p.shared_stride : nullptr;
    const F16 gate = Set16(
        p.shared_gate != nullptr ? SigmoidOf(p.shared_gate[row * p.shared_gate_stride]) : 1.0f);
    float* y = p.y + row * p.y_stride;
    for (size_t i = 0; i < p.n; i += 16) {
      F16 sum = Set16(0.0f);
      for (uint32_t j = 0; j < p.top; ++j) {
        sum = MulAdd(Set16(weights[j]), LoadUpTo(p.x + place[j] * p.x_stride, i, p.n), sum);
      }
      if (shared != nullptr) sum = MulAdd(gate, LoadUpTo(shared, i, p.n), sum);
      StoreUpTo(sum, y, i, p.n);
    }
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(RouteRows);
HWY_EXPORT(CombineRows);

ATLAS_CPU_KERNEL(route, RouteParams) { HWY_DYNAMIC_DISPATCH(RouteRows)(params, begin, end); }

ATLAS_CPU_KERNEL(group_experts, GroupExpertsParams) {
  if (begin != 0 || end == 0) return;
  const uint64_t rows = *params.row_count;
  const uint32_t experts = params.experts, top = params.top;
  uint32_t* offsets = params.offsets;
  std::fill_n(offsets, uint64_t{experts} + 1, 0u);
  for (uint64_t i = 0; i < rows * top; ++i) ++offsets[params.chosen[i] + 1];
  for (uint32_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  // Each expert's offset is the place that its next row takes, and at the end the next expert's
  // first one: one shift brings all of them back.
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t i = row * top; i < (row + 1) * top; ++i) {
      const uint32_t place = offsets[params.chosen[i]]++;
      params.source[place] = static_cast<uint32_t>(row);
      params.place[i] = place;
    }
  }
  std::copy_backward(offsets, offsets + experts, offsets + experts + 1);
  offsets[0] = 0;
}

ATLAS_CPU_KERNEL(combine_experts, CombineExpertsParams) {
  HWY_DYNAMIC_DISPATCH(CombineRows)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
