// What the hashed n-gram embedding does with its rows: ngram_gate, and ngram_conv, a causal
// convolution of each channel that remembers its inputs in the slot's ring and in anchors.
#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ngram.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

float Dot(const float* a, const float* b, size_t n) {
  F16 sum = Set16(0.0f);
  for (size_t i = 0; i < n; i += 16) sum = MulAdd(LoadUpTo(a, i, n), LoadUpTo(b, i, n), sum);
  return SumPairwise(sum);
}

/// sign(g) sqrt(max(|g|, 1e-6)); 0 of 0, NaN of NaN.
float SignedRoot(float g) {
  if (g == 0.0f) return 0.0f;
  const float size = std::fabs(g) < 1e-6f ? 1e-6f : std::fabs(g);
  return std::copysign(std::sqrt(size), g);
}

void GateRows(const NgramGateParams& p, uint32_t begin, uint32_t end) {
  const float root = std::sqrt(static_cast<float>(p.n));
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    const float* value = p.value + row * p.value_stride;
    for (uint64_t s = 0; s < p.streams; ++s) {
      const uint64_t at = s * p.n;
      const float dot =
          Dot(p.key + row * p.key_stride + at, p.query + row * p.query_stride + at, p.n);
      const F16 gate = Set16(SigmoidOf(SignedRoot(dot / root)));
      float* y = p.y + row * p.y_stride + at;
      for (size_t i = 0; i < p.n; i += 16) StoreUpTo(Mul(gate, LoadUpTo(value, i, p.n)), y, i, p.n);
    }
  }
}

/// The inputs of one sequence as a task sees them: `count` channels from `first` on.
class SpanInputs {
 public:
  SpanInputs(const NgramConvParams& p, const RowSpan& span, uint64_t first, size_t count)
      : p_(p),
        span_(span),
        first_(first),
        bytes_(count * sizeof(float)),
        reach_(p.dilation * (p.taps - 1)),
        ring_rows_(conv_ring_rows(reach_)),
        ring_(reinterpret_cast<float*>(p.slots + span.slot * p.slot_stride)) {}

  /// The input `back` (at most the reach) positions before the span's row `row`; null before the
  /// sequence.
  const float* Before(uint32_t row, uint32_t back) const {
    if (back <= row) {
      return p_.in + (uint64_t{span_.first_row} + row - back) * p_.in_stride + first_;
    }
    if (span_.index + uint64_t{row} < back) return nullptr;
    const uint32_t position = span_.index + row - back;
    if (position >= span_.anchor_index) return RingRow(position);
    if (span_.anchor == kNoAnchor || span_.anchor_index - position > reach_) return nullptr;
    return Anchor(span_.anchor) + (uint64_t{reach_} + position - span_.anchor_index) * p_.channels +
           first_;
  }

  /// Writes what precedes next_index into the next anchor. Before Remember, which may overwrite
  /// some of it.
  void LeaveAnchor() const {
    if (span_.next_anchor == kNoAnchor) return;
    float* to = Anchor(span_.next_anchor) + first_;
    for (uint32_t j = 0; j < reach_; ++j, to += p_.channels) {
      // Row and distance of position next_index - reach + j, which may lie before the span.
      const int64_t row = int64_t{span_.next_index} - reach_ + j - span_.index;
      const float* from =
          row < 0 ? Before(0, static_cast<uint32_t>(-row)) : Before(static_cast<uint32_t>(row), 0);
      if (from != nullptr) {
        std::memcpy(to, from, bytes_);
      } else {
        std::memset(to, 0, bytes_);
      }
    }
  }

  /// Writes the rows' inputs into the ring, as many of the last ones as it holds.
  void Remember() const {
    uint32_t row = span_.row_count - std::min(span_.row_count, ring_rows_);
    for (; row < span_.row_count; ++row) {
      std::memcpy(RingRow(span_.index + row), Before(row, 0), bytes_);
    }
  }

 private:
  float* RingRow(uint32_t position) const {
    return ring_ + uint64_t{position % ring_rows_} * p_.channels + first_;
  }
  float* Anchor(uint32_t anchor) const {
    return reinterpret_cast<float*>(p_.anchors + anchor * p_.anchor_stride);
  }

  const NgramConvParams& p_;
  const RowSpan& span_;
  uint64_t first_;
  size_t bytes_;
  uint32_t reach_;
  uint32_t ring_rows_;
  float* ring_;
};

/// A task's weights, tap by tap: [taps, kConvChannels].
using TapWeights = float[kMaxConvTaps * kConvChannels];

void ConvRow(const NgramConvParams& p, const SpanInputs& inputs, uint32_t row,
             const TapWeights& weights, const float* gated, float* x, size_t count) {
  const float* taken[kMaxConvTaps];
  for (uint32_t k = 0; k < p.taps; ++k) {
    taken[k] = inputs.Before(row, p.dilation * (p.taps - 1 - k));
  }
  for (size_t i = 0; i < count; i += 16) {
    F16 sum = Set16(0.0f);
    for (uint32_t k = 0; k < p.taps; ++k) {
      if (taken[k] == nullptr) continue;
      sum = MulAdd(Load16(weights + k * kConvChannels + i), LoadUpTo(taken[k], i, count), sum);
    }
    const F16 direct = Add(LoadUpTo(x, i, count), LoadUpTo(gated, i, count));
    StoreUpTo(Add(direct, Silu16(sum)), x, i, count);
  }
}

void ConvTasks(const NgramConvParams& p, uint32_t begin, uint32_t end) {
  if (p.taps == 0 || p.taps > kMaxConvTaps) return;
  const uint64_t tasks = (uint64_t{p.channels} + kConvChannels - 1) / kConvChannels;
  for (uint64_t task = begin; task < std::min<uint64_t>(end, tasks); ++task) {
    const uint64_t first = task * kConvChannels;
    const size_t count = std::min<uint64_t>(kConvChannels, p.channels - first);
    TapWeights weights = {};
    for (size_t i = 0; i < count; ++i) {
      for (uint32_t k = 0; k < p.taps; ++k) {
        weights[k * kConvChannels + i] = p.weight[(first + i) * p.taps + k];
      }
    }
    for (uint32_t s = 0; s < p.rows->span_count; ++s) {
      const RowSpan& span = p.rows->spans[s];
      if (span.row_count == 0) continue;
      const SpanInputs inputs(p, span, first, count);
      for (uint32_t i = 0; i < span.row_count; ++i) {
        const uint64_t row = uint64_t{span.first_row} + i;
        ConvRow(p, inputs, i, weights, p.gated + row * p.gated_stride + first,
                p.x + row * p.x_stride + first, count);
      }
      inputs.LeaveAnchor();
      inputs.Remember();
    }
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(GateRows);
HWY_EXPORT(ConvTasks);

ATLAS_CPU_KERNEL(ngram_gate, NgramGateParams) {
  HWY_DYNAMIC_DISPATCH(GateRows)(params, begin, end);
}

ATLAS_CPU_KERNEL(ngram_conv, NgramConvParams) {
  HWY_DYNAMIC_DISPATCH(ConvTasks)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif
