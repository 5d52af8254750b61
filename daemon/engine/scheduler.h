// Scheduler: which rows of which sequences make the next step. Pure decisions, no device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/engine/sequence.h"
#include "daemon/plan/plan.h"

namespace atlas::engine {

using SequencePtr = std::shared_ptr<Sequence>;

/// One sequence's rows in a step that is to be submitted.
struct Share {
  SequencePtr sequence;
  uint32_t rows = 0;
  uint32_t logit_rows = 0;
  bool feed_back = false;  // the row's id is on the device
  bool sample = false;
  bool prompt = false;                   // the rows are of the prompt
  bool ends_prefill = false;             // its last row is the last whose id the host knows
  std::optional<uint32_t> spare_anchor;  // for a state that the step may reach
};

struct StepDraft {
  plan::StepKind kind = plan::StepKind::kDecode;
  std::shared_ptr<Generation> generation;
  std::vector<Share> shares;
  uint32_t rows() const;
  uint32_t logit_rows() const;
};

struct SchedulerLimits {
  uint32_t prefill_rows = 0;  // of the largest prefill bucket
  uint32_t score_rows = 0;    // of the largest bucket with logits for every row
  uint32_t decode_sequences = 0;
  uint32_t drafts = 0;         // rows of a sequence beside the first in a decoding step
  uint32_t anchor_tokens = 0;  // a step leaves the state at the last multiple of it before its end
  double latency_bound_s = 0;  // a prefill step between decode steps should take no longer
};

class Scheduler {
 public:
  /// The limits of a generation's steps: after a swap, sequences of two may run.
  using LimitsOf = std::function<SchedulerLimits(const Generation*)>;
  explicit Scheduler(LimitsOf limits_of) : limits_of_(std::move(limits_of)) {}

  /// The next step, or nothing to do. `running` is in order of admission; only sequences for which
  /// `can_decode` is true (it may take a page for that) get a decode row. Prefill and decode steps
  /// alternate while there is work for both.
  std::optional<StepDraft> next(const std::vector<SequencePtr>& running,
                                const std::function<bool(Sequence&)>& can_decode);

  /// How long a prefill step of so many rows took.
  void measured_prefill(uint32_t rows, double seconds);

 private:
  std::optional<StepDraft> prefill(const std::vector<SequencePtr>& running, bool decoding);
  std::optional<StepDraft> decode(const std::vector<SequencePtr>& running,
                                  const std::function<bool(Sequence&)>& can_decode);
  uint32_t prefill_budget(const SchedulerLimits& limits, bool decoding) const;

  LimitsOf limits_of_;
  double seconds_per_row_ = 0;
  bool last_was_prefill_ = false;
  uint64_t prefill_turn_ = 0, decode_turn_ = 0;
};

}  // namespace atlas::engine
