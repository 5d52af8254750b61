// score: log-probabilities of a logit row, the target's rank, and the most likely alternatives.
#include "kernels/common/core.h"
#include "kernels/common/log_sum.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/score.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
/// Logits whose exponentials are summed in float32 before float64 takes over.
constexpr size_t kRun = 4096;

/// log(sum of e^x); NaN if an x is NaN or +infinity, or all are -infinity.
double LogSumExp(const float* x, size_t n) {
  const F16 infinity = Set16(std::numeric_limits<float>::infinity());
  F16 largest = Set16(kLowest);
  bool finite = true;
  for (size_t i = 0; i < n; i += 16) {
    const F16 v = n - i >= 16 ? Load16(x + i) : LoadPart16(x + i, n - i, kLowest);
    finite &= AllTrue(Lt(v, infinity));
    largest = Max(largest, v);
  }
  const float max = MaxLane(largest);
  if (!finite || !(max > kLowest)) return std::numeric_limits<double>::quiet_NaN();
  const F16 maxima = Set16(max);
  double sum = 0.0;
  for (size_t first = 0; first < n; first += kRun) {
    const size_t end = std::min(n, first + kRun);
    F16 lanes = Set16(0.0f);
    for (size_t i = first; i < end; i += 16) {
      const F16 v = end - i >= 16 ? Load16(x + i) : LoadPart16(x + i, end - i, kLowest);
      lanes = Add(lanes, Exp16(Sub(v, maxima)));
    }
    sum += static_cast<double>(SumPairwise(lanes));
  }
  return static_cast<double>(max) + log_of_sum(sum);
}

/// 1 + how many logits precede `target`: those larger, and the equal ones of lower id.
uint32_t Rank(const float* x, size_t n, uint32_t target) {
  const float value = x[target];
  const F16 values = Set16(value);
  size_t before = 0, i = 0;
  for (; i + 16 <= target; i += 16) before += CountTrue(Ge(Load16(x + i), values));
  for (; i < target; ++i) before += x[i] >= value;
  for (; i < n && i % 16 != 0; ++i) before += x[i] > value;
  for (; i + 16 <= n; i += 16) before += CountTrue(Lt(values, Load16(x + i)));
  for (; i < n; ++i) before += x[i] > value;
  return static_cast<uint32_t>(before + 1);
}

/// The `count` largest logits into ids and values, descending, lower ids first.
void Largest(const float* x, size_t n, uint32_t count, uint32_t* ids, float* values) {
  uint32_t held = 0;
  const auto insert = [&](uint32_t id) {
    uint32_t place = held < count ? held++ : count - 1;
    for (; place > 0 && values[place - 1] < x[id]; --place) {
      values[place] = values[place - 1];
      ids[place] = ids[place - 1];
    }
    values[place] = x[id];
    ids[place] = id;
  };
  size_t i = 0;
  for (; i < std::min<size_t>(n, count); ++i) insert(static_cast<uint32_t>(i));
  // Only a larger logit displaces the last: an equal one has the higher id.
  const auto consider = [&](size_t end) {
    for (; i < end; ++i) {
      if (x[i] > values[count - 1]) insert(static_cast<uint32_t>(i));
    }
  };
  while (i + 16 <= n) {
    if (NoneTrue(Lt(Set16(values[count - 1]), Load16(x + i)))) {
      i += 16;
    } else {
      consider(i + 16);
    }
  }
  consider(n);
}

/// Fills `score`, whose target is set; false if the logits are not finite.
bool ScoreRow(const float* x, size_t n, uint32_t top, RowScore* score) {
  const double total = LogSumExp(x, n);
  const bool finite = total == total;
  const auto log_probability = [total](float logit) {
    return static_cast<float>(static_cast<double>(logit) - total);
  };
  *score = RowScore{.target = score->target, .target_logprob = kLowest};
  if (!finite) return false;
  score->top_count = static_cast<uint32_t>(std::min<size_t>(top, n));
  if (score->target != kNoToken) {
    score->target_logprob = log_probability(x[score->target]);
    score->target_rank = Rank(x, n, score->target);
  }
  if (score->top_count != 0) Largest(x, n, score->top_count, score->top_ids, score->top_logprobs);
  for (uint32_t i = 0; i < score->top_count; ++i) {
    score->top_logprobs[i] = log_probability(score->top_logprobs[i]);
  }
  return true;
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(ScoreRow);

ATLAS_CPU_KERNEL(score, ScoreParams) {
  StepControl& control = *params.control;
  const auto* sequences = entry_array<SequenceInput>(control.entry, control.entry_layout.sequences);
  const auto* targets = entry_array<uint32_t>(control.entry, control.entry_layout.targets);
  const uint64_t vocab = control.limits.vocab;
  for (uint64_t j = begin; j < std::min(end, control.logit_count); ++j) {
    const uint32_t s = control.step.rows[control.logit_rows[j]].sequence;
    const SequenceInput& input = sequences[s];
    if (input.score == 0) continue;
    RowScore& score = control.scores[j];
    score.target = targets[input.logit_first + (j - control.step.spans[s].logit_first)];
    if (score.target == kNoToken) score.target = control.sampled[j];
    if (!HWY_DYNAMIC_DISPATCH(ScoreRow)(params.logits + j * vocab, vocab, input.score_top,
                                        &score)) {
      // Rows of one sequence may be scored by several threads.
      std::atomic_ref<uint32_t>(control.slots[input.slot].error)
          .fetch_or(kErrorNotFinite, std::memory_order_relaxed);
    }
  }
}

}  // namespace atlas::kernels::cpu
#endif
