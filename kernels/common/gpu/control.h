// control_fetch, control_commit and draft_begin for every GPU pack: one block each, whose threads
// share sequences and rows. Their contracts are core.h's.
#pragma once

#include "kernels/common/gpu/control_entry.h"

namespace atlas::kernels {

/// Calls body(s) by all lanes of a warp for each sequence s for which `wanted(s)` holds; warps
/// share the sequences. `wanted` is asked of one lane.
template <typename Wanted, typename Body>
ATLAS_DEVICE void each_wanted_sequence(uint32_t count, const Wanted& wanted, const Body& body) {
  using namespace device;
  for (uint32_t first = warp_index() * kWarpLanes; first < count; first += kControlThreads) {
    const uint32_t s = first + lane_index();
    uint32_t left = ballot(s < count && wanted(s));
    for (; left != 0; left &= left - 1) body(first + lowest_bit(left));
  }
}

/// Page updates in their order: of several of one place the last stays. One warp.
ATLAS_DEVICE void apply_page_updates(const ControlLimits& limits, const StepEntry& head,
                                     const PageUpdate* updates, uint32_t* block_table) {
  using namespace device;
  for (uint32_t first = 0; first < head.page_update_count; first += kWarpLanes) {
    const uint32_t i = first + lane_index(), count = head.page_update_count - first;
    PageUpdate update = {};
    if (i < head.page_update_count) update = load_struct(updates + i);
    const uint64_t place = i < head.page_update_count
                               ? uint64_t{update.slot} * limits.max_pages + update.index
                               : ~uint64_t{0};
    bool last = i < head.page_update_count;
    for (uint32_t lane = 1; lane < kWarpLanes && lane < count; ++lane) {
      const uint64_t other = shuffle(place, lane);
      if (lane > lane_index() && other == place) last = false;
    }
    if (last) store(block_table + place, update.page);
    warp_barrier();  // the next updates may overwrite these
  }
}

/// Brings a slot to where its sequence stands before its rows.
ATLAS_DEVICE void prepare_slot(const ControlLimits& limits, const SequenceInput& input,
                               const RowSpan& span, SlotState* slot) {
  using namespace device;
  if ((input.flags & kSequenceReset) != 0) {
    store(&slot->length, input.reset_length);
    store(&slot->last_token, kNoToken);
    store(&slot->generated, 0u);
    store(&slot->error, 0u);
    store(&slot->anchor, input.anchor);
    store(&slot->anchor_index, input.reset_length);
    store(&slot->draft_count, 0u);
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kHistoryIds; ++i) store(&slot->history[i], input.history[i]);
  }
  if ((input.flags & kSequenceFeedBack) == 0) return;
  // Rows without a token before them take id 0.
  bool known = true;
  for (uint32_t i = 0; i < span.row_count; ++i) {
    known = known && load(i == 0 ? &slot->last_token : &slot->drafts[i - 1]) < limits.vocab;
  }
  if (!known) store(&slot->error, load(&slot->error) | uint32_t{kErrorNoToken});
}

/// Token counts of sequences with penalties: what the entry says of them.
ATLAS_DEVICE void count_tokens(const ControlLimits& limits, const StepEntry& head,
                               const EntryArrays& arrays, uint32_t* all_counts) {
  using namespace device;
  const auto flags = [&](uint32_t s) { return load(&arrays.sequences[s].flags); };
  const auto counts_of = [&](uint32_t s) {
    return all_counts + uint64_t{load(&arrays.sequences[s].slot)} * limits.vocab;
  };
  // The whole block clears the counts of each sequence that begins anew.
  for (uint32_t first = 0; first < head.sequence_count; first += kWarpLanes) {
    const uint32_t s = first + lane_index();
    constexpr uint32_t kBoth = kSequenceReset | kSequenceCount;
    uint32_t left = ballot(s < head.sequence_count && (flags(s) & kBoth) == kBoth);
    for (; left != 0; left &= left - 1) {
      uint32_t* counts = counts_of(first + lowest_bit(left));
      const bool aligned = (reinterpret_cast<uint64_t>(counts) & 15) == 0;
      const uint32_t quads = aligned ? limits.vocab / 4 : 0;
      for (uint32_t i = thread_index(); i < quads; i += kControlThreads) {
        store_as<Words4>(counts + 4 * i, Words4{});
      }
      for (uint32_t i = 4 * quads + thread_index(); i < limits.vocab; i += kControlThreads) {
        store(counts + i, 0u);
      }
    }
  }
  block_barrier();  // cleared before anything is added
  // Sums and marks of integers have no order.
  each_wanted_sequence(
      head.sequence_count, [&](uint32_t s) { return (flags(s) & kSequenceCount) != 0; },
      [&](uint32_t s) {
        uint32_t* counts = counts_of(s);
        const SequenceInput* input = arrays.sequences + s;
        const uint32_t updates = load(&input->count_count), begin = load(&input->count_first);
        for (uint32_t i = lane_index(); i < updates; i += kWarpLanes) {
          const CountUpdate update = load_struct(arrays.count_updates + begin + i);
          atomic_add(counts + update.token, update.count & ~1u);
          atomic_or(counts + update.token, update.count & 1u);
        }
        constexpr uint32_t kBoth = kSequencePromptRows | kSequenceFeedBack;
        if ((flags(s) & kBoth) != kSequencePromptRows) return;
        const uint32_t rows = load(&input->row_count), row = load(&input->first_row);
        for (uint32_t i = lane_index(); i < rows; i += kWarpLanes) {
          atomic_or(counts + load(arrays.ids + row + i), 1u);
        }
      });
}

/// One row of the step, and the logit row that it has.
ATLAS_DEVICE void expand_row(StepControl* control, const ControlLimits& limits,
                             const EntryArrays& arrays, const RowSpan* spans, uint32_t span_count,
                             uint32_t row) {
  using namespace device;
  // The last span that begins at or before the row: those without rows come before it.
  uint32_t low = 0, high = span_count;
  while (low + 1 < high) {
    const uint32_t middle = (low + high) / 2;
    (load(&spans[middle].first_row) <= row ? low : high) = middle;
  }
  const RowSpan span = load_struct(spans + low);
  const SequenceInput* input = arrays.sequences + low;
  const uint32_t i = row - span.first_row;
  RowInput out{};
  out.sequence = low;
  out.slot = span.slot;
  out.index = span.index + i;
  ATLAS_UNROLL
  for (uint32_t p = 0; p < 3; ++p) out.position[p] = static_cast<int32_t>(out.index);
  if ((load(&input->flags) & kSequenceFeedBack) != 0) {
    const SlotState* slot = load(&control->slots) + span.slot;
    const uint32_t id = load(i == 0 ? &slot->last_token : &slot->drafts[i - 1]);
    out.token = id < limits.vocab ? id : 0;
  } else {
    out.token = load(arrays.ids + load(&input->first_row) + i);
  }
  store_struct(load(&control->step.rows) + row, out);
  const uint32_t without = span.row_count - span.logit_count;  // first rows have no logits
  if (i < without) return;
  store(load(&control->logit_rows) + span.logit_first + i - without, row);
  store(load(&control->sampled) + span.logit_first + i - without, kNoToken);
}

/// Copies the used parts of the entry to the device and checks that copy, so that nothing that the
/// host might still write there counts. A wrong entry has changed nothing but the copy, and stamps.
ATLAS_DEVICE bool take_entry(const ControlFetchParams& params, const ControlLimits& limits,
                             StepEntry& head, EntryArrays& arrays, uint32_t* shared) {
  using namespace device;
  StepControl* control = params.control;
  const uint64_t next_step = load(&control->next_step);
  const EntryLayout* layout = &control->entry_layout;
  const unsigned char* from =
      load(&control->ring) + (next_step - 1) % limits.ring_entries * load(&layout->bytes);
  unsigned char* to = load(&control->entry);
  head = load_struct(reinterpret_cast<const StepEntry*>(from));
  // Every thread has read the same ring entry, but the host may have written meanwhile.
  if (block_any<kControlThreads>(!valid_head(params, limits, next_step, head), shared)) {
    return false;
  }
  const auto copy = [&](uint64_t offset, uint32_t words) {
    copy_words<kControlThreads>(from + offset, to + offset, words);
  };
  if (thread_index() == 0) store_struct(reinterpret_cast<StepEntry*>(to), head);
  copy(load(&layout->sequences), head.sequence_count * (sizeof(SequenceInput) / 4));
  copy(load(&layout->page_updates), head.page_update_count * (sizeof(PageUpdate) / 4));
  copy(load(&layout->biases), head.bias_count * (sizeof(LogitBias) / 4));
  copy(load(&layout->count_updates), head.count_update_count * (sizeof(CountUpdate) / 4));
  copy(load(&layout->ids), head.row_count);
  copy(load(&layout->targets), head.logit_count);
  block_barrier();  // the copy is whole before it is checked

  arrays = arrays_of(to, layout);
  bool valid = valid_arrays(limits, head, arrays) &&
               (head.sequence_count != 0 || (head.row_count == 0 && head.logit_count == 0));
  for (uint32_t s = thread_index(); s < head.sequence_count; s += kControlThreads) {
    valid = valid && valid_sequence(limits, head, arrays.sequences, s, load(&control->slots));
  }
  if (block_any<kControlThreads>(!valid, shared)) return false;
  return !block_any<kControlThreads>(!valid_ids(limits, head, arrays), shared);
}

ATLAS_DEVICE_KERNEL(control_fetch, ControlFetchParams, kControlThreads) {
  using namespace device;
  StepControl* control = params.control;
  uint32_t* shared = shared_memory<uint32_t>();
  const ControlLimits limits = load_struct(&control->limits);
  StepEntry head;
  EntryArrays arrays;
  const bool taken = take_entry(params, limits, head, arrays, shared);
  uint32_t rows = 0, logit_rows = 0, spans = 0;
  if (taken) {
    spans = head.sequence_count;
    SlotState* slots = load(&control->slots);
    RowSpan* to = load(&control->step.spans);
    if (warp_index() == kControlThreads / kWarpLanes - 1) {
      apply_page_updates(limits, head, arrays.page_updates, load(&control->block_table));
    }
    bool counted = false;
    for (uint32_t first = 0; first < spans; first += kControlThreads) {
      const uint32_t s = first + thread_index();
      RowSpan span{};
      if (s < spans) {
        const SequenceInput input = load_struct(arrays.sequences + s);
        SlotState* slot = slots + input.slot;
        span = span_of(limits, input, load_place(slot));
        prepare_slot(limits, input, span, slot);
        counted = counted || (input.flags & kSequenceCount) != 0;
      }
      uint32_t more_rows, more_logit_rows;
      span.sequence = s;
      span.first_row = rows + block_before<kControlThreads>(span.row_count, shared, more_rows);
      span.logit_first =
          logit_rows + block_before<kControlThreads>(span.logit_count, shared, more_logit_rows);
      if (s < spans) store_struct(to + s, span);
      rows += more_rows;
      logit_rows += more_logit_rows;
    }
    // A barrier too: spans are written before rows look for theirs.
    if (block_any<kControlThreads>(counted, shared)) {
      count_tokens(limits, head, arrays, load(&control->counts));
    }
    for (uint32_t row = thread_index(); row < rows; row += kControlThreads) {
      expand_row(control, limits, arrays, to, spans, row);
    }
  }
  if (thread_index() != 0) return;
  store(&control->sequence_count, spans);
  store(&control->logit_count, logit_rows);
  store(&control->step.row_count, rows);
  store(&control->step.span_count, spans);
  store(&control->draft.row_count, 0u);
  store(&control->draft.span_count, 0u);
  store(&control->error, taken ? 0u : uint32_t{kErrorEntry});
}

/// A sequence's rows that count, its slot and its result. Gives the slot's error.
ATLAS_DEVICE uint32_t commit_sequence(StepControl* control, const SequenceInput* input, uint32_t s,
                                      SequenceResult* result) {
  using namespace device;
  const RowSpan* span = load(&control->step.spans) + s;
  const uint32_t slot_index = load(&input->slot), flags = load(&input->flags);
  SlotState* slot = load(&control->slots) + slot_index;
  const bool feed_back = (flags & kSequenceFeedBack) != 0;
  const uint32_t row_count = load(&span->row_count), logit_first = load(&span->logit_first);
  const uint32_t counted = feed_back ? smaller(load(&span->accepted) + 1, row_count) : row_count;
  const uint32_t length = load(&slot->length) + counted, error = load(&slot->error);
  store(&slot->length, length);
  // The ids of the counted rows come before the next position, nearest first.
  const RowInput* rows = load(&control->step.rows) + load(&span->first_row);
  uint32_t history[kHistoryIds];
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kHistoryIds; ++i) {
    history[i] = load(i < counted ? &rows[counted - 1 - i].token : &slot->history[i - counted]);
  }
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kHistoryIds; ++i) store(&slot->history[i], history[i]);
  const uint32_t next_anchor = load(&span->next_anchor);
  if (next_anchor != kNoAnchor) {
    store(&slot->anchor, next_anchor);
    store(&slot->anchor_index, load(&span->next_index));
  }
  const bool samples = (flags & kSequenceSample) != 0 && row_count != 0;
  const uint32_t count = samples && error == 0 ? (feed_back ? counted : 1) : 0;
  const uint32_t* sampled = load(&control->sampled) + logit_first;
  if (!feed_back && count != 0) sampled += load(&span->logit_count) - 1;
  uint32_t last = kNoToken;
  for (uint32_t i = 0; i < kMaxVerifyRows; ++i) {
    const uint32_t token = i < count ? load(sampled + i) : 0;
    if (i < count) last = token;
    store(&result->tokens[i], token);
  }
  if (samples) {
    store(&slot->last_token, last);
    store(&slot->generated, load(&slot->generated) + count);
  }
  if (error != 0) store(&slot->draft_count, 0u);
  store(&result->slot, slot_index);
  store(&result->length, length);
  store(&result->error, error);
  store(&result->token_count, count);
  store(&result->row_count, row_count);
  store(&result->logit_first, logit_first);
  store(&result->anchor, load(&slot->anchor));
  store(&result->anchor_index, load(&slot->anchor_index));
  return error;
}

/// The step's result in the ring.
ATLAS_DEVICE unsigned char* result_of(const StepControl* control) {
  using device::load;
  const uint64_t place = (load(&control->next_step) - 1) % load(&control->limits.ring_entries);
  return load(&control->results) + place * load(&control->result_layout.bytes);
}

ATLAS_DEVICE_KERNEL(control_commit, ControlCommitParams, kControlThreads) {
  using namespace device;
  StepControl* control = params.control;
  uint32_t* errors = shared_memory<uint32_t>();
  const uint32_t count = load(&control->sequence_count);
  const auto* sequences = reinterpret_cast<const SequenceInput*>(
      load(&control->entry) + load(&control->entry_layout.sequences));
  if (thread_index() == 0) store(errors, load(&control->error));
  block_barrier();  // the step's own error is there before others join it
  for (uint32_t s = thread_index(); s < count; s += kControlThreads) {
    auto* results = reinterpret_cast<SequenceResult*>(result_of(control) +
                                                      load(&control->result_layout.sequences));
    const uint32_t error = commit_sequence(control, sequences + s, s, results + s);
    if (error != 0) atomic_or(errors, error);
  }
  each_wanted_sequence(
      count, [&](uint32_t s) { return load(&sequences[s].score) != 0; },
      [&](uint32_t s) {
        const RowSpan* span = load(&control->step.spans) + s;
        const uint32_t first = load(&span->logit_first) * (sizeof(RowScore) / 4);
        const uint32_t words = load(&span->logit_count) * (sizeof(RowScore) / 4);
        const auto* from = reinterpret_cast<const uint32_t*>(load(&control->scores)) + first;
        auto* to =
            reinterpret_cast<uint32_t*>(result_of(control) + load(&control->result_layout.scores)) +
            first;
        for (uint32_t i = lane_index(); i < words; i += kWarpLanes) store(to + i, load(from + i));
      });
  block_barrier();  // results are written before the step's number says so
  if (thread_index() != 0) return;
  const uint32_t error = load(errors);
  const uint64_t step = load(&control->next_step);
  auto* head = reinterpret_cast<StepResult*>(result_of(control));
  store(&head->sequence_count, count);
  store(&head->logit_count, load(&control->logit_count));
  store(&head->error, error);
  store(&control->error, error);
  store(&control->next_step, step + 1);
  // Pairs with the host's acquire load: who sees the number sees the record before it.
  atomic_store<Order::kRelease, Scope::kSystem>(&head->step, step);
}

/// What the draft head must know of a sequence: its rows that count, and what was sampled.
struct Drafting {
  uint32_t counted, sampled;
};
ATLAS_DEVICE Drafting drafting_of(const StepControl* control, const SequenceInput* input,
                                  const RowSpan& span) {
  using namespace device;
  const uint32_t flags = load(&input->flags);
  const bool feed_back = (flags & kSequenceFeedBack) != 0;
  Drafting drafting{span.row_count, kNoToken};
  if (feed_back && span.row_count != 0) drafting.counted = span.accepted + 1;
  const SlotState* slot = load(&control->slots) + span.slot;
  if ((flags & kSequenceSample) != 0 && span.row_count != 0 && load(&slot->error) == 0) {
    const uint32_t place = (feed_back ? drafting.counted : span.logit_count) - 1;
    drafting.sampled = load(load(&control->sampled) + span.logit_first + place);
  }
  return drafting;
}

ATLAS_DEVICE_KERNEL(draft_begin, DraftBeginParams, kControlThreads) {
  using namespace device;
  StepControl* control = params.control;
  uint32_t* shared = shared_memory<uint32_t>();
  const uint32_t count = load(&control->sequence_count);
  const uint32_t vocab = load(&control->limits.vocab), drafts = load(&control->limits.drafts);
  const uint32_t max_positions = load(&control->limits.max_positions);
  const EntryArrays arrays = arrays_of(load(&control->entry), &control->entry_layout);
  const RowSpan* spans = load(&control->step.spans);
  const RowInput* rows = load(&control->step.rows);
  SlotState* slots = load(&control->slots);

  const uint32_t row_count = load(&control->step.row_count);
  uint32_t* next_ids = load(&control->next_ids);
  for (uint32_t row = thread_index(); row < row_count; row += kControlThreads) {
    const uint32_t s = load(&rows[row].sequence);
    const RowSpan span = load_struct(spans + s);
    const Drafting drafting = drafting_of(control, arrays.sequences + s, span);
    const uint32_t after = row - span.first_row + 1;
    uint32_t next = 0;
    if (after < drafting.counted) next = load(&rows[row + 1].token);
    if (after == drafting.counted) {
      next =
          drafting.sampled != kNoToken ? drafting.sampled : load(&arrays.sequences[s].next_token);
    }
    store(next_ids + row, next < vocab ? next : 0);
  }

  uint32_t draft_rows = 0;
  for (uint32_t first = 0; first < count; first += kControlThreads) {
    const uint32_t s = first + thread_index();
    RowSpan span{};
    Drafting drafting{0, kNoToken};
    uint32_t last = 0;
    bool drafted = false;
    if (s < count) {
      span = load_struct(spans + s);
      drafting = drafting_of(control, arrays.sequences + s, span);
      store(&slots[span.slot].draft_count, 0u);
      // The rows of the next step: the sampled token's position and those of the drafts.
      last = span.index + drafting.counted - 1;
      drafted = drafting.sampled != kNoToken && uint64_t{last} + 1 + drafts < max_positions;
    }
    uint32_t more;
    const uint32_t row =
        draft_rows + block_before<kControlThreads>(drafted ? 1u : 0u, shared, more);
    draft_rows += more;
    if (!drafted) continue;
    const uint32_t source = span.first_row + drafting.counted - 1;
    store(load(&control->draft_sources) + row, source);
    store_struct(load(&control->draft.rows) + row, load_struct(rows + source));
    RowSpan draft{};
    draft.sequence = s;
    draft.slot = span.slot;
    draft.first_row = row;
    draft.row_count = 1;
    draft.index = last;
    draft.anchor = draft.next_anchor = kNoAnchor;
    store_struct(load(&control->draft.spans) + row, draft);
  }
  if (thread_index() != 0) return;
  store(&control->draft.row_count, draft_rows);
  store(&control->draft.span_count, draft_rows);
}

}  // namespace atlas::kernels
