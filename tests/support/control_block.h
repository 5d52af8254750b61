// A control block in plain memory, with the host's side of it: entries are built, results read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/common/core.h"
#include "tests/support/cpu_pack.h"

namespace atlas::test {

/// Small limits that most tests fit into.
inline kernels::ControlLimits small_limits(uint32_t vocab = 50) {
  kernels::ControlLimits limits{};
  limits.ring_entries = 3;
  limits.max_rows = 64;
  limits.max_sequences = 8;
  limits.max_logit_rows = 32;
  limits.max_slots = 10;
  limits.max_pages = 4;
  limits.max_page_updates = 16;
  limits.max_biases = 16;
  limits.max_count_updates = 16;
  limits.vocab = vocab;
  limits.pool_pages = 40;
  limits.max_positions = 256;
  return limits;
}

/// A sampling input with every stage off.
inline kernels::SamplingInput neutral_sampling(float temperature = 0.0f, uint64_t seed = 0) {
  kernels::SamplingInput sampling{};
  sampling.temperature = temperature;
  sampling.top_p = 1.0f;
  sampling.repetition_penalty = 1.0f;
  sampling.seed = seed;
  return sampling;
}

/// One sequence of a step as a test states it.
struct Share {
  uint32_t slot = 0;
  uint32_t flags = 0;
  std::vector<uint32_t> ids;  // with kSequenceFeedBack: one, not used
  uint32_t logit_count = 0;
  uint32_t reset_length = 0;
  uint32_t score = 0, score_top = 0;
  std::vector<uint32_t> targets;  // of the logit rows; missing ones are kNoToken
  std::vector<kernels::LogitBias> biases;
  std::vector<kernels::CountUpdate> counts;
  uint32_t next_token = kernels::kNoToken;
  uint32_t anchor = kernels::kNoAnchor, spare_anchor = kernels::kNoAnchor;
  std::vector<uint32_t> history;  // nearest first
  kernels::SamplingInput sampling = neutral_sampling();
};

/// The one token of a step without drafts, or kNoToken.
inline uint32_t sampled_token(const kernels::SequenceResult& result) {
  return result.token_count == 0 ? kernels::kNoToken : result.tokens[0];
}

class ControlBlock {
 public:
  explicit ControlBlock(const kernels::ControlLimits& limits)
      : entry_layout_(kernels::entry_layout(limits)),
        result_layout_(kernels::result_layout(limits)),
        ring_(limits.ring_entries * entry_layout_.bytes),
        results_(limits.ring_entries * result_layout_.bytes),
        entry_(entry_layout_.bytes),
        slots_(limits.max_slots),
        block_table_(size_t{limits.max_slots} * limits.max_pages),
        counts_(size_t{limits.max_slots} * limits.vocab),
        rows_(limits.max_rows),
        logit_rows_(limits.max_logit_rows),
        sampled_(limits.max_logit_rows),
        next_ids_(limits.max_rows),
        draft_sources_(limits.max_sequences),
        draft_rows_(limits.max_sequences),
        spans_(limits.max_sequences),
        draft_spans_(limits.max_sequences),
        scores_(limits.max_logit_rows) {
    control_.limits = limits;
    control_.entry_layout = entry_layout_;
    control_.result_layout = result_layout_;
    control_.ring = ring_.as<unsigned char>();
    control_.results = results_.as<unsigned char>();
    control_.entry = entry_.as<unsigned char>();
    control_.slots = slots_.data();
    control_.block_table = block_table_.data();
    control_.counts = counts_.data();
    control_.step.rows = rows_.data();
    control_.step.spans = spans_.data();
    control_.draft.rows = draft_rows_.data();
    control_.draft.spans = draft_spans_.data();
    control_.next_ids = next_ids_.data();
    control_.draft_sources = draft_sources_.data();
    control_.logit_rows = logit_rows_.data();
    control_.sampled = sampled_.data();
    control_.scores = scores_.data();
    control_.next_step = 1;
  }

  kernels::StepControl& control() { return control_; }
  const kernels::ControlLimits& limits() const { return control_.limits; }

  /// The ring entry of `step`, to be spoilt by tests.
  unsigned char* ring_entry(uint64_t step) {
    return ring_.as<unsigned char>() + (step - 1) % limits().ring_entries * entry_layout_.bytes;
  }
  template <typename T>
  T* ring_array(uint64_t step, uint64_t offset) {
    return reinterpret_cast<T*>(ring_entry(step) + offset);
  }
  const kernels::EntryLayout& entry_layout() const { return entry_layout_; }

  /// Writes the entry of `step` into the ring.
  void submit(uint64_t step, const std::vector<Share>& shares,
              const std::vector<kernels::PageUpdate>& pages = {}) {
    kernels::StepEntry head{};
    head.step = step;
    auto* sequences = ring_array<kernels::SequenceInput>(step, entry_layout_.sequences);
    auto* biases = ring_array<kernels::LogitBias>(step, entry_layout_.biases);
    auto* counts = ring_array<kernels::CountUpdate>(step, entry_layout_.count_updates);
    auto* ids = ring_array<uint32_t>(step, entry_layout_.ids);
    auto* targets = ring_array<uint32_t>(step, entry_layout_.targets);
    for (const Share& share : shares) {
      kernels::SequenceInput input{};
      input.slot = share.slot;
      input.flags = share.flags;
      input.first_row = head.row_count;
      input.row_count = static_cast<uint32_t>(share.ids.size());
      input.reset_length = share.reset_length;
      input.logit_first = head.logit_count;
      input.logit_count = share.logit_count;
      input.score = share.score;
      input.score_top = share.score_top;
      input.count_first = head.count_update_count;
      input.count_count = static_cast<uint32_t>(share.counts.size());
      input.next_token = share.next_token;
      input.anchor = share.anchor;
      input.spare_anchor = share.spare_anchor;
      std::fill_n(input.history, kernels::kHistoryIds, kernels::kNoToken);
      std::copy(share.history.begin(), share.history.end(), input.history);
      input.sampling = share.sampling;
      input.sampling.bias_first = head.bias_count;
      input.sampling.bias_count = static_cast<uint32_t>(share.biases.size());
      std::copy(share.biases.begin(), share.biases.end(), biases + head.bias_count);
      std::copy(share.counts.begin(), share.counts.end(), counts + head.count_update_count);
      std::copy(share.ids.begin(), share.ids.end(), ids + head.row_count);
      std::fill_n(targets + head.logit_count, share.logit_count, kernels::kNoToken);
      std::copy(share.targets.begin(), share.targets.end(), targets + head.logit_count);
      sequences[head.sequence_count++] = input;
      head.row_count += input.row_count;
      head.logit_count += input.logit_count;
      head.bias_count += input.sampling.bias_count;
      head.count_update_count += input.count_count;
    }
    std::copy(pages.begin(), pages.end(),
              ring_array<kernels::PageUpdate>(step, entry_layout_.page_updates));
    head.page_update_count = static_cast<uint32_t>(pages.size());
    std::memcpy(ring_entry(step), &head, sizeof(head));
  }

  void fetch(const CpuPack& pack, uint32_t max_rows = ~0u, uint32_t max_logit_rows = ~0u) {
    kernels::ControlFetchParams params{};
    params.control = &control_;
    params.max_rows = max_rows;
    params.max_logit_rows = max_logit_rows;
    pack.run("control_fetch", params, 1);
  }
  void commit(const CpuPack& pack) {
    pack.run("control_commit", kernels::ControlCommitParams{&control_}, 1);
  }

  const kernels::StepResult& result(uint64_t step) const {
    return *reinterpret_cast<const kernels::StepResult*>(result_bytes(step));
  }
  const kernels::SequenceResult& sequence_result(uint64_t step, uint32_t s) const {
    return reinterpret_cast<const kernels::SequenceResult*>(result_bytes(step) +
                                                            result_layout_.sequences)[s];
  }
  const kernels::RowScore& row_score(uint64_t step, uint32_t j) const {
    return reinterpret_cast<const kernels::RowScore*>(result_bytes(step) +
                                                      result_layout_.scores)[j];
  }

 private:
  const std::byte* result_bytes(uint64_t step) const {
    return results_.data() + (step - 1) % limits().ring_entries * result_layout_.bytes;
  }

  kernels::EntryLayout entry_layout_;
  kernels::ResultLayout result_layout_;
  Aligned ring_, results_, entry_;
  std::vector<kernels::SlotState> slots_;
  std::vector<uint32_t> block_table_, counts_;
  std::vector<kernels::RowInput> rows_;
  std::vector<uint32_t> logit_rows_, sampled_, next_ids_, draft_sources_;
  std::vector<kernels::RowInput> draft_rows_;
  std::vector<kernels::RowSpan> spans_, draft_spans_;
  std::vector<kernels::RowScore> scores_;
  kernels::StepControl control_{};
};

}  // namespace atlas::test
