// sample: from logits to a token, in the stages that kernels/common/core.h defines.
#include "kernels/common/core.h"
#include "kernels/common/philox.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/sample_draw.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sample.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/sample_filter-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

/// Largest x; NaN if an x is NaN or +infinity.
float MaxOfFinite(const float* x, size_t n) {
  const F16 infinity = Set16(std::numeric_limits<float>::infinity());
  F16 largest = Set16(kDropped);
  bool finite = true;
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 v = Load16(x + i);
    finite &= AllTrue(Lt(v, infinity));  // false for NaN too
    largest = Max(largest, v);
  }
  float m = MaxLane(largest);
  for (; i < n; ++i) {
    finite &= x[i] < std::numeric_limits<float>::infinity();
    m = std::max(m, x[i]);
  }
  return finite ? m : std::numeric_limits<float>::quiet_NaN();
}

/// The first id whose x is `value`.
uint32_t FirstEqual(const float* x, size_t n, float value) {
  const F16 values = Set16(value);
  size_t i = 0;
  while (i + 16 <= n && NoneTrue(Eq(Load16(x + i), values))) i += 16;
  while (i < n && x[i] != value) ++i;
  return i < n ? static_cast<uint32_t>(i) : kNoToken;
}

void Penalize(const SamplingInput& sampling, const uint32_t* counts, float* x, size_t n) {
  constexpr size_t kBlock = 64;
  for (size_t first = 0; first < n; first += kBlock) {
    const size_t end = std::min(n, first + kBlock);
    uint32_t any = 0;
    for (size_t i = first; i < end; ++i) any |= counts[i];
    if (any == 0) continue;
    for (size_t i = first; i < end; ++i) {
      if (counts[i] == 0) continue;
      const auto times = static_cast<float>(counts[i] >> 1);
      const float repetition = sampling.repetition_penalty;
      x[i] = x[i] < 0.0f ? x[i] * repetition : x[i] / repetition;
      x[i] -= sampling.frequency_penalty * times;
      if (times > 0.0f) x[i] -= sampling.presence_penalty;
    }
  }
}

void Scale(const float* x, float max, float temperature, float* z, size_t n) {
  const F16 maxima = Set16(max), temperatures = Set16(temperature);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) Store16(Div(Sub(Load16(x + i), maxima), temperatures), z + i);
  for (; i < n; ++i) z[i] = (x[i] - max) / temperature;
}

/// The upper and lower halves of a * m.
HWY_INLINE void MulWide(VU32 a, uint32_t m, VU32& high, VU32& low) {
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{a.raw} * m;
  high = hn::Set(U32(), static_cast<uint32_t>(product >> 32));
  low = hn::Set(U32(), static_cast<uint32_t>(product));
#else
  const U32 d;
  const hn::RepartitionToWide<U32> wide;
  const VU32 factor = hn::Set(d, m);
  const auto even = hn::MulEven(a, factor);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), factor);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
#endif
}

/// Philox blocks whose first counter words are `block`, for one register of lanes.
HWY_INLINE void Philox(VU32 block, uint32_t position, uint64_t seed, VU32 (&words)[4]) {
  const U32 d;
  words[0] = block;
  words[1] = hn::Set(d, position);
  words[2] = words[3] = hn::Zero(d);
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    VU32 high0, low0, high1, low1;
    MulWide(words[0], kPhiloxMultiplier0, high0, low0);
    MulWide(words[2], kPhiloxMultiplier1, high1, low1);
    words[0] = hn::Xor(hn::Xor(high1, words[1]), hn::Set(d, key0));
    words[1] = low1;
    words[2] = hn::Xor(hn::Xor(high0, words[3]), hn::Set(d, key1));
    words[3] = low0;
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
}

/// noisy[i] = z[i] + the noise of token 64 * group + i, for i < 64.
HWY_INLINE void AddNoise(const float* z, uint32_t group, uint32_t position, uint64_t seed,
                         float* noisy) {
  const F32 d;
  const U32 du;
  const hn::RebindToSigned<F32> di;
  for (uint32_t lane = 0; lane < 16; lane += kRegisterLanes) {
    VU32 words[4];
    Philox(hn::Iota(du, group * 16 + lane), position, seed, words);
    for (uint32_t w = 0; w < 4; ++w) {
      const auto bits = hn::BitCast(di, hn::ShiftRight<1>(words[w]));
      const VF32 noise = hn::Neg(LogPositive(d, ExponentialFromBits(d, bits)));
      const size_t i = w * 16 + lane;
      hn::StoreU(hn::Add(hn::LoadU(d, z + i), noise), d, noisy + i);
    }
  }
}

/// No noise is larger: -log(-log1p(-2^-32)) is 22.18.
constexpr float kLargestNoise = 22.25f;

/// The id with the largest z + noise, lowest first.
uint32_t NoisyArgmax(const float* z, size_t n, uint32_t position, uint64_t seed) {
  float best = kDropped;
  uint32_t best_id = kNoToken;
  float part[64], noisy[64];
  for (size_t first = 0; first < n; first += 64) {
    const float* group = z + first;
    if (n - first < 64) {
      std::fill(std::copy(group, z + n, part), part + 64, kDropped);
      group = part;
    }
    F16 largest =
        Max(Max(Load16(group), Load16(group + 16)), Max(Load16(group + 32), Load16(group + 48)));
    // An equal sum would not win: its id is higher.
    if (NoneTrue(Lt(Set16(best), Add(largest, Set16(kLargestNoise))))) continue;
    AddNoise(group, static_cast<uint32_t>(first / 64), position, seed, noisy);
    largest =
        Max(Max(Load16(noisy), Load16(noisy + 16)), Max(Load16(noisy + 32), Load16(noisy + 48)));
    if (NoneTrue(Lt(Set16(best), largest))) continue;
    for (uint32_t i = 0; i < 64; ++i) {
      if (noisy[i] > best) {
        best = noisy[i];
        best_id = static_cast<uint32_t>(first) + i;
      }
    }
  }
  return best_id;
}

/// The whole of `sample` for one sequence; kNoToken if the logits are not finite.
uint32_t DrawToken(const SampleDraw& draw) {
  const SamplingInput& sampling = draw.sampling;
  const size_t n = draw.vocab;
  const float* x = draw.logits;
  if (sampling.bias_count != 0 || draw.counts != nullptr) {
    std::copy_n(draw.logits, n, draw.scratch);
    for (uint32_t i = 0; i < sampling.bias_count; ++i) {
      draw.scratch[draw.biases[i].token] += draw.biases[i].bias;
    }
    if (draw.counts != nullptr) Penalize(sampling, draw.counts, draw.scratch, n);
    x = draw.scratch;
  }
  const float max = MaxOfFinite(x, n);
  if (!(max > kDropped)) return kNoToken;
  if (!(sampling.temperature > 0.0f)) return FirstEqual(x, n, max);
  float* z = draw.scratch;
  Scale(x, max, sampling.temperature, z, n);
  if (sampling.top_k != 0 && sampling.top_k < n) KeepTopK(z, n, sampling.top_k);
  if (sampling.top_p < 1.0f) KeepTopP(z, n, sampling.top_p);
  if (sampling.min_p > 0.0f) KeepMinP(z, n, sampling.min_p);
  return NoisyArgmax(z, n, draw.position, sampling.seed);
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

namespace {

HWY_EXPORT(DrawToken);

bool has_penalties(const SamplingInput& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

/// A draw for a sequence of the entry; logits and position are the caller's.
SampleDraw draw_for(const StepControl& control, uint32_t sequence, float* scratch) {
  const auto* sequences = entry_array<SequenceInput>(control.entry, control.entry_layout.sequences);
  const auto* biases = entry_array<LogitBias>(control.entry, control.entry_layout.biases);
  const SequenceInput& input = sequences[sequence];
  SampleDraw draw{input.sampling};
  draw.vocab = control.limits.vocab;
  draw.biases = biases + input.sampling.bias_first;
  draw.counts = has_penalties(input.sampling)
                    ? control.counts + uint64_t{input.slot} * control.limits.vocab
                    : nullptr;
  draw.scratch = scratch;
  return draw;
}

/// Draws for one sequence from its logit row `first` on, as long as drafts are accepted.
void sample_span(StepControl& control, const float* logits, RowSpan& span, uint32_t first,
                 SampleDraw& draw, bool count) {
  const uint64_t vocab = control.limits.vocab;
  const RowInput* rows = control.step.rows + span.first_row;
  for (uint32_t i = first; i < span.logit_count; ++i) {
    const uint32_t row = span.row_count - span.logit_count + i;
    draw.logits = logits + (span.logit_first + i) * vocab;
    draw.position = rows[row].index;
    const uint32_t token = HWY_DYNAMIC_DISPATCH(DrawToken)(draw);
    if (token == kNoToken) {
      control.slots[span.slot].error |= kErrorNotFinite;
      return;
    }
    control.sampled[span.logit_first + i] = token;
    if (count) control.counts[span.slot * vocab + token] += 2;
    span.accepted = i - first;
    if (row + 1 == span.row_count || rows[row + 1].token != token) return;
  }
}

}  // namespace

ATLAS_CPU_KERNEL(sample, SampleParams) {
  StepControl& control = *params.control;
  const auto* sequences = entry_array<SequenceInput>(control.entry, control.entry_layout.sequences);
  for (uint64_t s = begin; s < std::min(end, control.sequence_count); ++s) {
    const SequenceInput& input = sequences[s];
    RowSpan& span = control.step.spans[s];
    if ((input.flags & kSequenceSample) == 0 || span.logit_count == 0) continue;
    // A slot with an error gives no token until its reset.
    if (control.slots[span.slot].error != 0) continue;
    const bool feed_back = (input.flags & kSequenceFeedBack) != 0;
    SampleDraw draw =
        draw_for(control, static_cast<uint32_t>(s), params.scratch + s * control.limits.vocab);
    sample_span(control, params.logits, span, feed_back ? 0 : span.logit_count - 1, draw,
                (input.flags & kSequenceCount) != 0);
  }
}

ATLAS_CPU_KERNEL(draft_sample, DraftSampleParams) {
  StepControl& control = *params.control;
  const uint64_t vocab = control.limits.vocab;
  for (uint64_t r = begin; r < std::min(end, control.draft.row_count); ++r) {
    RowInput& row = control.draft.rows[r];
    RowSpan& span = control.draft.spans[r];
    SlotState& slot = control.slots[row.slot];
    SampleDraw draw = draw_for(control, row.sequence, params.scratch + r * vocab);
    draw.logits = params.logits + r * vocab;
    draw.position = row.index + 1;
    const uint32_t token = HWY_DYNAMIC_DISPATCH(DrawToken)(draw);
    if (token != kNoToken && slot.draft_count == params.number) {
      slot.drafts[slot.draft_count++] = token;
    }
    row.token = token == kNoToken ? 0 : token;
    ++row.index;
    for (int32_t& position : row.position) ++position;
    ++span.index;
  }
}

}  // namespace atlas::kernels::cpu
#endif
