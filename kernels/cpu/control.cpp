// control_fetch and control_commit: the first and the last record of every step.
//
// Fetch trusts nothing of an entry before it has checked all of it, and changes nothing until then.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"

namespace atlas::kernels::cpu {
namespace {

bool is_finite_number(float x) { return x - x == 0.0f; }

/// A range [first, first + count) of an array with `size` elements.
bool within(uint32_t first, uint32_t count, uint32_t size) {
  return uint64_t{first} + count <= size;
}

bool has_penalties(const SamplingInput& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

/// Rows that a sequence whose ids are fed back really has: its last token and its drafts, up to the
/// next anchor position (a chunk's rows are accepted or rejected before the next chunk begins) and
/// to the last position.
uint32_t feed_back_rows(const StepControl& control, const SequenceInput& input,
                        const SlotState& slot) {
  const ControlLimits& limits = control.limits;
  if (slot.length >= limits.max_positions) return 0;
  uint32_t rows = std::min(input.row_count, slot.draft_count + 1);
  rows = std::min(rows, limits.max_positions - slot.length);
  if (limits.anchor_tokens != 0) {
    rows = std::min(rows, limits.anchor_tokens - slot.length % limits.anchor_tokens);
  }
  return rows;
}

/// The sequence's rows and the state that they go on from; rows are not placed in the step yet.
RowSpan span_of(const StepControl& control, const SequenceInput& input, const SlotState& slot) {
  const bool reset = (input.flags & kSequenceReset) != 0;
  const bool feed_back = (input.flags & kSequenceFeedBack) != 0;
  RowSpan span{};
  span.slot = input.slot;
  span.index = reset ? input.reset_length : slot.length;
  span.row_count = feed_back ? feed_back_rows(control, input, slot) : input.row_count;
  span.logit_count = feed_back ? span.row_count : input.logit_count;
  span.anchor = reset ? input.anchor : slot.anchor;
  span.anchor_index = reset ? input.reset_length : slot.anchor_index;
  span.next_anchor = kNoAnchor;
  span.next_index = span.anchor_index;
  const uint32_t chunk = control.limits.anchor_tokens;
  if (chunk == 0 || span.row_count == 0) return span;
  const uint32_t begun = (span.index + span.row_count - 1) / chunk * chunk;
  if (begun > span.anchor_index) {
    span.next_anchor = input.spare_anchor;
    span.next_index = begun;
  }
  return span;
}

/// A ring entry, and the typed views of its arrays.
class Entry {
 public:
  Entry(const StepControl& control, const unsigned char* bytes)
      : control_(control), bytes_(bytes), head_(*reinterpret_cast<const StepEntry*>(bytes)) {}

  const StepEntry& head() const { return head_; }
  const SequenceInput* sequences() const {
    return entry_array<SequenceInput>(bytes_, control_.entry_layout.sequences);
  }
  const PageUpdate* page_updates() const {
    return entry_array<PageUpdate>(bytes_, control_.entry_layout.page_updates);
  }
  const LogitBias* biases() const {
    return entry_array<LogitBias>(bytes_, control_.entry_layout.biases);
  }
  const CountUpdate* count_updates() const {
    return entry_array<CountUpdate>(bytes_, control_.entry_layout.count_updates);
  }
  const uint32_t* ids() const { return entry_array<uint32_t>(bytes_, control_.entry_layout.ids); }
  const uint32_t* targets() const {
    return entry_array<uint32_t>(bytes_, control_.entry_layout.targets);
  }

  /// Whether every count and index keeps its bounds.
  bool valid(const ControlFetchParams& params) const {
    const ControlLimits& limits = control_.limits;
    return head_.step == control_.next_step &&
           head_.row_count <= std::min(params.max_rows, limits.max_rows) &&
           head_.logit_count <= std::min(params.max_logit_rows, limits.max_logit_rows) &&
           head_.sequence_count <= limits.max_sequences &&
           head_.page_update_count <= limits.max_page_updates &&
           head_.bias_count <= limits.max_biases &&
           head_.count_update_count <= limits.max_count_updates && valid_arrays() &&
           valid_sequences();
  }

 private:
  bool valid_arrays() const {
    const ControlLimits& limits = control_.limits;
    const auto known = [&limits](const auto& item) { return item.token < limits.vocab; };
    const auto placed = [&limits](const PageUpdate& update) {
      return update.slot < limits.max_slots && update.index < limits.max_pages &&
             update.page < limits.pool_pages;
    };
    return std::all_of(page_updates(), page_updates() + head_.page_update_count, placed) &&
           std::all_of(biases(), biases() + head_.bias_count, known) &&
           std::all_of(count_updates(), count_updates() + head_.count_update_count, known) &&
           std::all_of(targets(), targets() + head_.logit_count,
                       [&limits](uint32_t id) { return id < limits.vocab || id == kNoToken; });
  }

  bool valid_sequences() const {
    uint32_t rows = 0, logit_rows = 0;
    for (uint32_t s = 0; s < head_.sequence_count; ++s) {
      const SequenceInput& input = sequences()[s];
      if (input.first_row != rows || input.logit_first != logit_rows || !valid_sequence(input)) {
        return false;
      }
      rows += input.row_count;
      logit_rows += input.logit_count;
    }
    return rows == head_.row_count && logit_rows == head_.logit_count;
  }

  bool valid_sequence(const SequenceInput& input) const {
    const SamplingInput& sampling = input.sampling;
    if (input.slot >= control_.limits.max_slots ||
        !within(input.first_row, input.row_count, head_.row_count) ||
        !within(input.logit_first, input.logit_count, head_.logit_count) ||
        input.logit_count > input.row_count || input.score_top > kMaxTopLogprobs ||
        !within(sampling.bias_first, sampling.bias_count, head_.bias_count) ||
        !within(input.count_first, input.count_count, head_.count_update_count)) {
      return false;
    }
    // Each slot once: the stamp says that this step has met it already.
    SlotState& slot = control_.slots[input.slot];
    if (slot.step == head_.step) return false;
    slot.step = head_.step;
    return valid_rows(input, slot) && valid_state(input, slot) && valid_sampling(input);
  }

  bool valid_rows(const SequenceInput& input, const SlotState& slot) const {
    if ((input.flags & kSequenceFeedBack) != 0) {
      return (input.flags & kSequenceReset) == 0 && input.row_count >= 1 &&
             input.row_count <= kMaxVerifyRows && input.logit_count == input.row_count;
    }
    const bool reset = (input.flags & kSequenceReset) != 0;
    const uint32_t* first = ids() + input.first_row;
    const uint32_t vocab = control_.limits.vocab;
    return within(reset ? input.reset_length : slot.length, input.row_count,
                  control_.limits.max_positions) &&
           (input.next_token < vocab || input.next_token == kNoToken) &&
           std::all_of(first, first + input.row_count, [vocab](uint32_t id) { return id < vocab; });
  }

  bool valid_state(const SequenceInput& input, const SlotState& slot) const {
    const ControlLimits& limits = control_.limits;
    const auto known = [&limits](uint32_t anchor) {
      return anchor == kNoAnchor || anchor < limits.anchors;
    };
    if (!known(input.anchor) || !known(input.spare_anchor)) return false;
    if (limits.anchor_tokens == 0) return true;
    const bool reset = (input.flags & kSequenceReset) != 0;
    if (reset && (input.reset_length % limits.anchor_tokens != 0 ||
                  (input.reset_length == 0) != (input.anchor == kNoAnchor))) {
      return false;
    }
    const RowSpan span = span_of(control_, input, slot);
    if (span.next_index == span.anchor_index) return true;
    return input.spare_anchor != kNoAnchor && input.spare_anchor != span.anchor;
  }

  bool valid_sampling(const SequenceInput& input) const {
    if ((input.flags & kSequenceSample) == 0) return true;
    const SamplingInput& sampling = input.sampling;
    return input.logit_count != 0 &&
           (!has_penalties(sampling) || (input.flags & kSequenceCount) != 0) &&
           is_finite_number(sampling.temperature);
  }

  const StepControl& control_;
  const unsigned char* bytes_;
  const StepEntry& head_;
};

/// Copies the used part of an array from the ring into the device's entry.
template <typename T>
void copy_array(const StepControl& control, const unsigned char* from, uint64_t offset,
                uint32_t count) {
  std::memcpy(control.entry + offset, from + offset, count * sizeof(T));
}

/// Brings the slot to where the sequence stands before its rows.
void prepare_slot(StepControl& control, const Entry& entry, const SequenceInput& input) {
  SlotState& slot = control.slots[input.slot];
  uint32_t* counts = control.counts + uint64_t{input.slot} * control.limits.vocab;
  const bool count = (input.flags & kSequenceCount) != 0;
  if ((input.flags & kSequenceReset) != 0) {
    slot.length = input.reset_length;
    slot.last_token = kNoToken;
    slot.generated = 0;
    slot.error = 0;
    slot.anchor = input.anchor;
    slot.anchor_index = input.reset_length;
    slot.draft_count = 0;
    std::copy_n(input.history, kHistoryIds, slot.history);
    if (count) std::fill_n(counts, control.limits.vocab, 0u);
  }
  if (!count) return;
  for (uint32_t i = 0; i < input.count_count; ++i) {
    const CountUpdate& update = entry.count_updates()[input.count_first + i];
    counts[update.token] += update.count & ~1u;
    counts[update.token] |= update.count & 1u;
  }
  if ((input.flags & kSequencePromptRows) != 0 && (input.flags & kSequenceFeedBack) == 0) {
    for (uint32_t i = 0; i < input.row_count; ++i) counts[entry.ids()[input.first_row + i]] |= 1u;
  }
}

/// The id of row i of a sequence whose ids are fed back; an error if nothing was sampled before.
uint32_t fed_back_id(const StepControl& control, SlotState& slot, uint32_t i) {
  const uint32_t id = i == 0 ? slot.last_token : slot.drafts[i - 1];
  if (id < control.limits.vocab) return id;
  slot.error |= kErrorNoToken;
  return 0;
}

void expand_rows(StepControl& control, const Entry& entry, uint32_t s) {
  const SequenceInput& input = entry.sequences()[s];
  SlotState& slot = control.slots[input.slot];
  RowSpan span = span_of(control, input, slot);
  span.sequence = s;
  span.first_row = control.step.row_count;
  span.logit_first = control.logit_count;
  for (uint32_t i = 0; i < span.row_count; ++i) {
    RowInput& row = control.step.rows[span.first_row + i];
    row.sequence = s;
    row.slot = input.slot;
    row.index = span.index + i;
    for (int32_t& position : row.position) position = static_cast<int32_t>(row.index);
    row.token = (input.flags & kSequenceFeedBack) != 0 ? fed_back_id(control, slot, i)
                                                       : entry.ids()[input.first_row + i];
  }
  for (uint32_t i = 0; i < span.logit_count; ++i) {
    control.logit_rows[span.logit_first + i] =
        span.first_row + span.row_count - span.logit_count + i;
    control.sampled[span.logit_first + i] = kNoToken;
  }
  control.step.spans[s] = span;
  control.step.span_count = s + 1;
  control.step.row_count += span.row_count;
  control.logit_count += span.logit_count;
}

/// Puts the ids of `count` rows before the slot's next position.
void remember_ids(const StepControl& control, const RowSpan& span, uint32_t count,
                  SlotState& slot) {
  uint32_t history[kHistoryIds];
  for (uint32_t i = 0; i < kHistoryIds; ++i) {
    history[i] = i < count ? control.step.rows[span.first_row + count - 1 - i].token
                           : slot.history[i - count];
  }
  std::copy_n(history, kHistoryIds, slot.history);
}

}  // namespace

ATLAS_CPU_KERNEL(control_fetch, ControlFetchParams) {
  if (begin != 0 || end == 0) return;
  StepControl& control = *params.control;
  control.sequence_count = control.logit_count = 0;
  control.step.row_count = control.step.span_count = 0;
  control.draft.row_count = control.draft.span_count = 0;
  control.error = 0;
  const uint64_t place = (control.next_step - 1) % control.limits.ring_entries;
  const unsigned char* from = control.ring + place * control.entry_layout.bytes;
  const Entry source(control, from);
  if (!source.valid(params)) {
    control.error = kErrorEntry;
    return;
  }
  const StepEntry& head = source.head();
  const EntryLayout& layout = control.entry_layout;
  std::memcpy(control.entry, from, sizeof(StepEntry));
  copy_array<SequenceInput>(control, from, layout.sequences, head.sequence_count);
  copy_array<PageUpdate>(control, from, layout.page_updates, head.page_update_count);
  copy_array<LogitBias>(control, from, layout.biases, head.bias_count);
  copy_array<CountUpdate>(control, from, layout.count_updates, head.count_update_count);
  copy_array<uint32_t>(control, from, layout.ids, head.row_count);
  copy_array<uint32_t>(control, from, layout.targets, head.logit_count);

  const Entry entry(control, control.entry);
  for (uint32_t i = 0; i < head.page_update_count; ++i) {
    const PageUpdate& update = entry.page_updates()[i];
    control.block_table[uint64_t{update.slot} * control.limits.max_pages + update.index] =
        update.page;
  }
  for (uint32_t s = 0; s < head.sequence_count; ++s) {
    prepare_slot(control, entry, entry.sequences()[s]);
    expand_rows(control, entry, s);
  }
  control.sequence_count = head.sequence_count;
}

ATLAS_CPU_KERNEL(control_commit, ControlCommitParams) {
  if (begin != 0 || end == 0) return;
  StepControl& control = *params.control;
  const uint64_t step = control.next_step;
  const Entry entry(control, control.entry);
  unsigned char* to =
      control.results + (step - 1) % control.limits.ring_entries * control.result_layout.bytes;
  auto* results = reinterpret_cast<SequenceResult*>(to + control.result_layout.sequences);
  auto* scores = reinterpret_cast<RowScore*>(to + control.result_layout.scores);
  for (uint32_t s = 0; s < control.sequence_count; ++s) {
    const SequenceInput& input = entry.sequences()[s];
    const RowSpan& span = control.step.spans[s];
    SlotState& slot = control.slots[input.slot];
    const bool feed_back = (input.flags & kSequenceFeedBack) != 0;
    const uint32_t counted =
        feed_back ? std::min(span.accepted + 1, span.row_count) : span.row_count;
    slot.length += counted;
    remember_ids(control, span, counted, slot);
    if (span.next_anchor != kNoAnchor) {
      slot.anchor = span.next_anchor;
      slot.anchor_index = span.next_index;
    }
    SequenceResult result{};
    result.slot = input.slot;
    result.length = slot.length;
    result.row_count = span.row_count;
    result.logit_first = span.logit_first;
    result.anchor = slot.anchor;
    result.anchor_index = slot.anchor_index;
    if ((input.flags & kSequenceSample) != 0 && span.row_count != 0) {
      const uint32_t first = feed_back ? span.logit_first : span.logit_first + span.logit_count - 1;
      const uint32_t count = slot.error == 0 ? (feed_back ? counted : 1) : 0;
      std::copy_n(control.sampled + first, count, result.tokens);
      result.token_count = count;
      slot.last_token = count != 0 ? result.tokens[count - 1] : kNoToken;
      slot.generated += count;
    }
    if (slot.error != 0) slot.draft_count = 0;
    control.error |= slot.error;
    result.error = slot.error;
    results[s] = result;
    if (input.score != 0) {
      std::copy_n(control.scores + span.logit_first, span.logit_count, scores + span.logit_first);
    }
  }
  auto& head = *reinterpret_cast<StepResult*>(to);
  head.sequence_count = control.sequence_count;
  head.logit_count = control.logit_count;
  head.error = control.error;
  control.next_step = step + 1;
  // Pairs with the host's acquire load: who sees the number sees the record before it.
  std::atomic_ref<uint64_t>(head.step).store(step, std::memory_order_release);
}

}  // namespace atlas::kernels::cpu
