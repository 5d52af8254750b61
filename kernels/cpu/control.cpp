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
    const bool reset = (input.flags & kSequenceReset) != 0;
    if (!within(reset ? input.reset_length : slot.length, input.row_count,
                control_.limits.max_positions)) {
      return false;
    }
    if ((input.flags & kSequenceFeedBack) != 0) {
      if (input.row_count != 1) return false;
    } else {
      const uint32_t* first = ids() + input.first_row;
      const uint32_t vocab = control_.limits.vocab;
      if (!std::all_of(first, first + input.row_count,
                       [vocab](uint32_t id) { return id < vocab; })) {
        return false;
      }
    }
    if ((input.flags & kSequenceSample) != 0) {
      if (input.logit_count == 0) return false;
      if (has_penalties(sampling) && (input.flags & kSequenceCount) == 0) return false;
      if (!is_finite_number(sampling.temperature)) return false;
    }
    return true;
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

void expand_rows(StepControl& control, const Entry& entry, uint32_t s) {
  const SequenceInput& input = entry.sequences()[s];
  SlotState& slot = control.slots[input.slot];
  for (uint32_t i = 0; i < input.row_count; ++i) {
    RowInput& row = control.rows[input.first_row + i];
    row.sequence = s;
    row.slot = input.slot;
    row.index = slot.length + i;
    for (int32_t& position : row.position) position = static_cast<int32_t>(row.index);
    if ((input.flags & kSequenceFeedBack) == 0) {
      row.token = entry.ids()[input.first_row + i];
    } else if (slot.last_token < control.limits.vocab) {
      row.token = slot.last_token;
    } else {
      row.token = 0;
      slot.error |= kErrorNoToken;
    }
  }
  for (uint32_t i = 0; i < input.logit_count; ++i) {
    control.logit_rows[input.logit_first + i] =
        input.first_row + input.row_count - input.logit_count + i;
  }
}

}  // namespace

ATLAS_CPU_KERNEL(control_fetch, ControlFetchParams) {
  if (begin != 0 || end == 0) return;
  StepControl& control = *params.control;
  control.row_count = control.sequence_count = control.logit_count = 0;
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
  control.row_count = head.row_count;
  control.sequence_count = head.sequence_count;
  control.logit_count = head.logit_count;
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
    SlotState& slot = control.slots[input.slot];
    uint32_t token = kNoToken;
    slot.length += input.row_count;
    if ((input.flags & kSequenceSample) != 0) {
      if (slot.error == 0) token = control.sampled[s];
      slot.last_token = token;
      if (token != kNoToken) {
        ++slot.generated;
        if ((input.flags & kSequenceCount) != 0) {
          control.counts[uint64_t{input.slot} * control.limits.vocab + token] += 2;
        }
      }
    }
    control.error |= slot.error;
    results[s] = {input.slot, token, slot.length, slot.error};
    if (input.score != 0) {
      std::copy_n(control.scores + input.logit_first, input.logit_count,
                  scores + input.logit_first);
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
