// gdn_conv: the short convolution of Gated DeltaNet, and what follows from a row alone: queries and
// keys of unit length (kernels/common/gdn.h). A task takes one head's channels of all rows, so the
// ring has one reader and one writer.
#include "kernels/common/gdn.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gdn_conv.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

/// Rows of one span's qkv by position, from the step, the ring, the anchor or before the sequence.
struct GdnHistory {
  const GdnConvParams& p;
  const RowSpan& span;
  size_t channel;
  const float* zeros;

  float* ring(uint32_t position) const {
    auto* slot = reinterpret_cast<float*>(p.slots + span.slot * p.slot_stride);
    return slot + position % gdn_ring_rows(p.taps) * gdn_channels(gdn_shape(p)) + channel;
  }
  /// Row j of what an anchor keeps.
  float* kept(uint32_t anchor, uint32_t j) const {
    const GdnShape shape = gdn_shape(p);
    auto* state = reinterpret_cast<float*>(p.anchors + anchor * p.anchor_stride);
    return state + gdn_anchor_history(shape) + j * gdn_channels(shape) + channel;
  }
  const float* at(int64_t position) const {
    if (position < 0) return zeros;
    if (position >= span.index) {
      return p.qkv + (span.first_row + position - span.index) * p.qkv_stride + channel;
    }
    const auto before = static_cast<uint32_t>(position);
    if (before >= span.anchor_index) return ring(before);
    return kept(span.anchor, before + p.taps - 1 - span.anchor_index);
  }
};

/// y = silu of the convolution of `width` channels, padded with zeros; its sum of squares.
HWY_INLINE float ConvolveRow(const float* const* in, const float* weights, size_t taps,
                             size_t width, float* y) {
  const size_t padded = gdn_padded(static_cast<uint32_t>(width));
  const F16 zero = Set16(0.0f), one = Set16(1.0f);
  F16 squares = zero;
  for (size_t c = 0; c < padded; c += 16) {
    F16 sum = zero;
    for (size_t t = 0; t < taps; ++t) {
      const F16 x = c + 16 <= width ? Load16(in[t] + c) : LoadPart16(in[t] + c, width - c, 0.0f);
      sum = MulAdd(Load16(weights + t * padded + c), x, sum);
    }
    const F16 silu = Div(sum, Add(one, Exp16(Sub(zero, sum))));
    Store16(silu, y + c);
    squares = MulAdd(silu, silu, squares);
  }
  return SumPairwise(squares);
}

void ConvolveHead(const GdnConvParams& p, uint32_t head, float* scratch) {
  const bool is_value = head >= 2 * p.key_heads;
  const size_t width = is_value ? p.value_dim : p.key_dim;
  const size_t padded = gdn_padded(static_cast<uint32_t>(width));
  const size_t value_head = is_value ? head - 2 * p.key_heads : 0;
  const size_t keys_before = is_value ? 2 * p.key_heads : head;
  const size_t channel = keys_before * p.key_dim + value_head * p.value_dim;
  const size_t place = keys_before * gdn_padded(p.key_dim) + value_head * padded;
  const size_t taps = p.taps, row_floats = gdn_row_floats(gdn_shape(p));
  const float scale = head < p.key_heads ? 1.0f / std::sqrt(static_cast<float>(p.key_dim)) : 1.0f;

  float* weights = scratch;  // [taps, padded]
  std::fill_n(scratch, (taps + 1) * padded, 0.0f);
  for (size_t c = 0; c < width; ++c) {
    for (size_t t = 0; t < taps; ++t) {
      weights[t * padded + c] = p.conv[(channel + c) * taps + t];
    }
  }
  for (uint32_t s = 0; s < p.rows->span_count; ++s) {
    const RowSpan& span = p.rows->spans[s];
    if (!gdn_serves(span)) continue;
    const GdnHistory history{p, span, channel, scratch + taps * padded};
    for (uint32_t r = 0; r < span.row_count; ++r) {
      const float* in[kGdnMaxTaps];
      for (size_t t = 0; t < taps; ++t) {
        in[t] = history.at(int64_t{span.index} + r + t - (p.taps - 1));
      }
      float* y = p.mixed + (uint64_t{span.first_row} + r) * row_floats + place;
      const float squares = ConvolveRow(in, weights, taps, width, y);
      if (is_value) continue;
      const F16 unit = Set16(1.0f / std::sqrt(squares + 1e-6f)), more = Set16(scale);
      for (size_t c = 0; c < padded; c += 16) Store16(Mul(Mul(Load16(y + c), unit), more), y + c);
    }
    // Before the ring is written: what the next anchor keeps may be in it.
    if (span.next_anchor != kNoAnchor) {
      for (uint32_t j = 0; j + 1 < p.taps; ++j) {
        const float* from = history.at(int64_t{span.next_index} - (p.taps - 1) + j);
        std::copy_n(from, width, history.kept(span.next_anchor, j));
      }
    }
    const uint32_t kept = std::min(span.row_count, gdn_ring_rows(p.taps));
    for (uint32_t r = span.row_count - kept; r < span.row_count; ++r) {
      std::copy_n(history.at(int64_t{span.index} + r), width, history.ring(span.index + r));
    }
  }
}

void ConvolveHeads(const GdnConvParams& p, uint32_t begin, uint32_t end, std::byte* scratch) {
  const uint32_t heads = 2 * p.key_heads + p.value_heads;
  for (uint32_t head = begin; head < std::min(end, heads); ++head) {
    ConvolveHead(p, head, reinterpret_cast<float*>(scratch));
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(ConvolveHeads);
ATLAS_CPU_KERNEL(gdn_conv, GdnConvParams) {
  HWY_DYNAMIC_DISPATCH(ConvolveHeads)(params, begin, end, scratch);
}

}  // namespace atlas::kernels::cpu
#endif
