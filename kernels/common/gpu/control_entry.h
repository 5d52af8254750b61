// The checks of a step's entry for control_fetch: the same as the CPU pack's, shared among the
// threads of a block.
#pragma once

#include "kernels/common/core.h"
#include "kernels/common/core_grids.h"
#include "kernels/common/gpu/block.h"

namespace atlas::kernels {

ATLAS_DEVICE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/// A range [first, first + count) of an array with `size` elements.
ATLAS_DEVICE bool within(uint32_t first, uint32_t count, uint32_t size) {
  return uint64_t{first} + count <= size;
}

ATLAS_DEVICE bool has_penalties(const SamplingInput& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

/// What of a slot says how a sequence goes on.
struct SlotPlace {
  uint32_t length, draft_count, anchor, anchor_index;
};
ATLAS_DEVICE SlotPlace load_place(const SlotState* slot) {
  return {device::load(&slot->length), device::load(&slot->draft_count),
          device::load(&slot->anchor), device::load(&slot->anchor_index)};
}

/// Rows that a sequence whose ids are fed back really has: its last token and its drafts, up to the
/// next anchor position (a chunk's rows are accepted or rejected before the next chunk begins) and
/// to the last position.
ATLAS_DEVICE uint32_t feed_back_rows(const ControlLimits& limits, uint32_t asked,
                                     const SlotPlace& slot) {
  if (slot.length >= limits.max_positions) return 0;
  uint32_t rows = smaller(asked, slot.draft_count + 1);
  rows = smaller(rows, limits.max_positions - slot.length);
  if (limits.anchor_tokens != 0) {
    rows = smaller(rows, limits.anchor_tokens - slot.length % limits.anchor_tokens);
  }
  return rows;
}

/// The sequence's rows and the state that they go on from; rows are not placed in the step yet.
ATLAS_DEVICE RowSpan span_of(const ControlLimits& limits, const SequenceInput& input,
                             const SlotPlace& slot) {
  const bool reset = (input.flags & kSequenceReset) != 0;
  const bool feed_back = (input.flags & kSequenceFeedBack) != 0;
  RowSpan span{};
  span.slot = input.slot;
  span.index = reset ? input.reset_length : slot.length;
  span.row_count = feed_back ? feed_back_rows(limits, input.row_count, slot) : input.row_count;
  span.logit_count = feed_back ? span.row_count : input.logit_count;
  span.anchor = reset ? input.anchor : slot.anchor;
  span.anchor_index = reset ? input.reset_length : slot.anchor_index;
  span.next_anchor = kNoAnchor;
  span.next_index = span.anchor_index;
  const uint32_t chunk = limits.anchor_tokens;
  if (chunk == 0 || span.row_count == 0) return span;
  const uint32_t begun = (span.index + span.row_count - 1) / chunk * chunk;
  if (begun > span.anchor_index) {
    span.next_anchor = input.spare_anchor;
    span.next_index = begun;
  }
  return span;
}

/// An entry's arrays.
struct EntryArrays {
  const SequenceInput* sequences;
  const PageUpdate* page_updates;
  const LogitBias* biases;
  const CountUpdate* count_updates;
  const uint32_t* ids;
  const uint32_t* targets;
};
ATLAS_DEVICE EntryArrays arrays_of(const unsigned char* entry, const EntryLayout* layout) {
  using device::load;
  return {reinterpret_cast<const SequenceInput*>(entry + load(&layout->sequences)),
          reinterpret_cast<const PageUpdate*>(entry + load(&layout->page_updates)),
          reinterpret_cast<const LogitBias*>(entry + load(&layout->biases)),
          reinterpret_cast<const CountUpdate*>(entry + load(&layout->count_updates)),
          reinterpret_cast<const uint32_t*>(entry + load(&layout->ids)),
          reinterpret_cast<const uint32_t*>(entry + load(&layout->targets))};
}

ATLAS_DEVICE bool valid_head(const ControlFetchParams& params, const ControlLimits& limits,
                             uint64_t next_step, const StepEntry& head) {
  return head.step == next_step && head.row_count <= smaller(params.max_rows, limits.max_rows) &&
         head.logit_count <= smaller(params.max_logit_rows, limits.max_logit_rows) &&
         head.sequence_count <= limits.max_sequences &&
         head.page_update_count <= limits.max_page_updates &&
         head.bias_count <= limits.max_biases &&
         head.count_update_count <= limits.max_count_updates;
}

/// Whether this thread's share of the arrays keeps its bounds.
ATLAS_DEVICE bool valid_arrays(const ControlLimits& limits, const StepEntry& head,
                               const EntryArrays& arrays) {
  using namespace device;
  bool valid = true;
  for (uint32_t i = thread_index(); i < head.page_update_count; i += kControlThreads) {
    const PageUpdate update = load_struct(arrays.page_updates + i);
    valid = valid && update.slot < limits.max_slots && update.index < limits.max_pages &&
            update.page < limits.pool_pages;
  }
  for (uint32_t i = thread_index(); i < head.bias_count; i += kControlThreads) {
    valid = valid && load(&arrays.biases[i].token) < limits.vocab;
  }
  for (uint32_t i = thread_index(); i < head.count_update_count; i += kControlThreads) {
    valid = valid && load(&arrays.count_updates[i].token) < limits.vocab;
  }
  for (uint32_t i = thread_index(); i < head.logit_count; i += kControlThreads) {
    const uint32_t id = load(arrays.targets + i);
    valid = valid && (id < limits.vocab || id == kNoToken);
  }
  return valid;
}

ATLAS_DEVICE bool valid_state(const ControlLimits& limits, const SequenceInput& input,
                              const SlotPlace& slot) {
  const auto known = [&](uint32_t anchor) {
    return anchor == kNoAnchor || anchor < limits.anchors;
  };
  if (!known(input.anchor) || !known(input.spare_anchor)) return false;
  if (limits.anchor_tokens == 0) return true;
  if ((input.flags & kSequenceReset) != 0 &&
      (input.reset_length % limits.anchor_tokens != 0 ||
       (input.reset_length == 0) != (input.anchor == kNoAnchor))) {
    return false;
  }
  const RowSpan span = span_of(limits, input, slot);
  if (span.next_index == span.anchor_index) return true;
  return input.spare_anchor != kNoAnchor && input.spare_anchor != span.anchor;
}

/// All of a sequence but its ids. Shares follow one another: each begins where the one before ends,
/// and the last ends where the step does.
ATLAS_DEVICE bool valid_sequence(const ControlLimits& limits, const StepEntry& head,
                                 const SequenceInput* sequences, uint32_t s, SlotState* slots) {
  using namespace device;
  const SequenceInput input = load_struct(sequences + s);
  const SamplingInput& sampling = input.sampling;
  const bool last = s + 1 == head.sequence_count;
  const uint32_t next_row = last ? head.row_count : load(&sequences[s + 1].first_row);
  const uint32_t next_logit = last ? head.logit_count : load(&sequences[s + 1].logit_first);
  if ((s == 0 && (input.first_row != 0 || input.logit_first != 0)) ||
      uint64_t{input.first_row} + input.row_count != next_row ||
      uint64_t{input.logit_first} + input.logit_count != next_logit ||
      input.slot >= limits.max_slots || next_row > head.row_count ||
      next_logit > head.logit_count || input.logit_count > input.row_count ||
      input.score_top > kMaxTopLogprobs ||
      !within(sampling.bias_first, sampling.bias_count, head.bias_count) ||
      !within(input.count_first, input.count_count, head.count_update_count)) {
    return false;
  }
  // Each slot once: the stamp says that another sequence of this step has met it.
  SlotState* slot = slots + input.slot;
  if (atomic_exchange(&slot->step, head.step) == head.step) return false;
  const SlotPlace place = load_place(slot);
  const bool reset = (input.flags & kSequenceReset) != 0;
  if ((input.flags & kSequenceFeedBack) != 0) {
    if (reset || input.row_count < 1 || input.row_count > kMaxVerifyRows ||
        input.logit_count != input.row_count) {
      return false;
    }
  } else if (!within(reset ? input.reset_length : place.length, input.row_count,
                     limits.max_positions) ||
             !(input.next_token < limits.vocab || input.next_token == kNoToken)) {
    return false;
  }
  if (!valid_state(limits, input, place)) return false;
  if ((input.flags & kSequenceSample) == 0) return true;
  return input.logit_count != 0 &&
         (!has_penalties(sampling) || (input.flags & kSequenceCount) != 0) &&
         sampling.temperature - sampling.temperature == 0.0f;
}

/// The sequence whose share of the entry has row `row`. Shares are valid.
ATLAS_DEVICE uint32_t sequence_at(const SequenceInput* sequences, uint32_t count, uint32_t row) {
  uint32_t low = 0, high = count;
  while (low + 1 < high) {
    const uint32_t middle = (low + high) / 2;
    if (device::load(&sequences[middle].first_row) <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Whether the ids of this thread's rows are ids, but for those of rows that are fed back.
ATLAS_DEVICE bool valid_ids(const ControlLimits& limits, const StepEntry& head,
                            const EntryArrays& arrays) {
  using namespace device;
  bool valid = true;
  for (uint32_t row = thread_index(); row < head.row_count; row += kControlThreads) {
    if (load(arrays.ids + row) < limits.vocab) continue;
    const uint32_t s = sequence_at(arrays.sequences, head.sequence_count, row);
    valid = valid && (load(&arrays.sequences[s].flags) & kSequenceFeedBack) != 0;
  }
  return valid;
}

}  // namespace atlas::kernels
