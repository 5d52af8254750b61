#include "daemon/engine/scheduler.h"

#include <algorithm>

namespace atlas::engine {

namespace {

/// Below this a prefill step between decode steps is all overhead.
constexpr uint32_t kMinPrefillRows = 16;

bool wants_decode(const Sequence& sequence) {
  return !sequence.finished && sequence.slot && !sequence.prefilling() &&
         sequence.sampled < sequence.spec.max_tokens;
}

bool wants_prefill(const Sequence& sequence) {
  return !sequence.finished && sequence.slot && sequence.prefilling();
}

}  // namespace

uint32_t StepDraft::rows() const {
  uint32_t sum = 0;
  for (const Share& share : shares) sum += share.rows;
  return sum;
}

uint32_t StepDraft::logit_rows() const {
  uint32_t sum = 0;
  for (const Share& share : shares) sum += share.logit_rows;
  return sum;
}

void Scheduler::measured_prefill(uint32_t rows, double seconds) {
  if (rows < kMinPrefillRows) return;
  const double now = seconds / rows;
  seconds_per_row_ = seconds_per_row_ == 0 ? now : 0.75 * seconds_per_row_ + 0.25 * now;
}

uint32_t Scheduler::prefill_budget(const SchedulerLimits& limits, bool decoding) const {
  if (!decoding || seconds_per_row_ == 0) return limits.prefill_rows;
  const double rows = limits.latency_bound_s / seconds_per_row_;
  return std::clamp(static_cast<uint32_t>(std::min(rows, 1e9)),
                    std::min(kMinPrefillRows, limits.prefill_rows), limits.prefill_rows);
}

std::optional<StepDraft> Scheduler::next(const std::vector<SequencePtr>& running,
                                         const std::function<bool(Sequence&)>& can_decode) {
  const bool decoding = std::any_of(running.begin(), running.end(),
                                    [](const auto& one) { return wants_decode(*one); });
  if (!last_was_prefill_ || !decoding) {
    if (auto draft = prefill(running, decoding)) {
      last_was_prefill_ = true;
      return draft;
    }
  }
  last_was_prefill_ = false;
  if (auto draft = decode(running, can_decode)) return draft;
  // Decoding sequences may all wait for a page: prefill goes on meanwhile.
  return prefill(running, decoding);
}

std::optional<StepDraft> Scheduler::prefill(const std::vector<SequencePtr>& running,
                                            bool decoding) {
  std::vector<SequencePtr> waiting;
  std::copy_if(running.begin(), running.end(), std::back_inserter(waiting),
               [](const auto& one) { return wants_prefill(*one); });
  if (waiting.empty()) return std::nullopt;
  // The turn moves on, so that one long prompt does not keep others from their first token.
  const SequencePtr leader = waiting[prefill_turn_++ % waiting.size()];  // a copy: waiting changes
  const bool scores = leader->wants_prompt_scores();
  std::erase_if(waiting, [&](const auto& one) {
    return one->generation != leader->generation || one->wants_prompt_scores() != scores;
  });
  std::rotate(waiting.begin(), std::find(waiting.begin(), waiting.end(), leader), waiting.end());
  const SchedulerLimits limits = limits_of_(leader->generation.get());
  if (waiting.size() > limits.decode_sequences) waiting.resize(limits.decode_sequences);

  StepDraft draft{plan::StepKind::kPrefill, leader->generation, {}};
  uint32_t budget = prefill_budget(limits, decoding);
  if (scores) budget = std::min(budget, limits.score_rows);
  for (size_t i = 0; i < waiting.size() && budget > 0; ++i) {
    const Sequence& sequence = *waiting[i];
    // Equal parts of what is left; a part that is not used goes to those behind.
    const auto part =
        static_cast<uint32_t>((budget + waiting.size() - i - 1) / (waiting.size() - i));
    uint32_t end = std::min(sequence.prefill_end, sequence.submitted + part);
    // Token counts tell prompt from output, so a resumed sequence's rows do not mix the two.
    const bool prompt = sequence.submitted < sequence.prompt_tokens();
    if (prompt && sequence.counts_tokens()) end = std::min(end, sequence.prompt_tokens());
    if (sequence.submitted <= sequence.snapshot_at && sequence.snapshot_at != 0) {
      end = std::min(end, sequence.snapshot_at + limits.anchor_tokens);
    }
    Share share{.sequence = waiting[i],
                .rows = end - sequence.submitted,
                .prompt = prompt,
                .ends_prefill = end == sequence.prefill_end};
    share.sample = share.ends_prefill && sequence.sampled < sequence.spec.max_tokens;
    share.logit_rows = scores ? share.rows : (share.sample ? 1 : 0);
    budget -= share.rows;
    draft.shares.push_back(std::move(share));
  }
  return draft;
}

std::optional<StepDraft> Scheduler::decode(const std::vector<SequencePtr>& running,
                                           const std::function<bool(Sequence&)>& can_decode) {
  StepDraft draft;
  SchedulerLimits limits;  // of the draft's generation, once it has one
  const size_t first = running.empty() ? 0 : decode_turn_ % running.size();
  for (size_t i = 0; i < running.size(); ++i) {
    const SequencePtr& sequence = running[(first + i) % running.size()];
    if (!wants_decode(*sequence)) continue;
    if (!draft.shares.empty() && sequence->generation != draft.generation) continue;
    // Taking a page for one sequence may have preempted another that was to be looked at.
    if (!can_decode(*sequence) || !wants_decode(*sequence)) continue;
    if (draft.shares.empty()) {
      draft.generation = sequence->generation;
      limits = limits_of_(draft.generation.get());
      draft.kind = limits.drafts == 0 ? plan::StepKind::kDecode : plan::StepKind::kVerify;
    }
    draft.shares.push_back({.sequence = sequence,
                            .rows = 1 + limits.drafts,
                            .logit_rows = 1 + limits.drafts,
                            .feed_back = true,
                            .sample = true});
    if (draft.shares.size() == limits.decode_sequences) break;
  }
  // Where not all fit, or two generations run, the start moves on.
  ++decode_turn_;
  if (draft.shares.empty()) return std::nullopt;
  std::erase_if(draft.shares, [](const Share& share) { return !wants_decode(*share.sequence); });
  if (draft.shares.empty()) return std::nullopt;
  return draft;
}

}  // namespace atlas::engine
