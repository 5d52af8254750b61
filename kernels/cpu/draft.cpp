// draft_begin: what the draft head goes on from once the step's tokens are known.
#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"

namespace atlas::kernels::cpu {
namespace {

/// The id after each row of a sequence: the next row's while that row counts, else what was
/// sampled, else what the host knows.
void fill_next_ids(StepControl& control, const SequenceInput& input, const RowSpan& span,
                   uint32_t counted, uint32_t sampled) {
  for (uint32_t i = 0; i < span.row_count; ++i) {
    uint32_t next = i + 1 < counted ? control.step.rows[span.first_row + i + 1].token : 0;
    if (i + 1 == counted) next = sampled != kNoToken ? sampled : input.next_token;
    control.next_ids[span.first_row + i] = next < control.limits.vocab ? next : 0;
  }
}

}  // namespace

ATLAS_CPU_KERNEL(draft_begin, DraftBeginParams) {
  if (begin != 0 || end == 0) return;
  StepControl& control = *params.control;
  const auto* sequences = entry_array<SequenceInput>(control.entry, control.entry_layout.sequences);
  RowSet& draft = control.draft;
  for (uint32_t s = 0; s < control.sequence_count; ++s) {
    const SequenceInput& input = sequences[s];
    const RowSpan& span = control.step.spans[s];
    SlotState& slot = control.slots[span.slot];
    const bool feed_back = (input.flags & kSequenceFeedBack) != 0;
    const uint32_t counted = feed_back && span.row_count != 0 ? span.accepted + 1 : span.row_count;
    const bool samples =
        (input.flags & kSequenceSample) != 0 && span.row_count != 0 && slot.error == 0;
    const uint32_t sampled =
        samples ? control.sampled[span.logit_first + (feed_back ? counted : span.logit_count) - 1]
                : kNoToken;
    fill_next_ids(control, input, span, counted, sampled);
    slot.draft_count = 0;
    if (sampled == kNoToken) continue;
    // The rows of the next step: the sampled token's position and those of the drafts.
    const uint32_t last = span.index + counted - 1;
    if (uint64_t{last} + 1 + control.limits.drafts >= control.limits.max_positions) continue;
    const uint32_t row = draft.row_count++;
    control.draft_sources[row] = span.first_row + counted - 1;
    draft.rows[row] = control.step.rows[span.first_row + counted - 1];
    RowSpan& draft_span = draft.spans[row];
    draft_span = {};
    draft_span.sequence = s;
    draft_span.slot = span.slot;
    draft_span.first_row = row;
    draft_span.row_count = 1;
    draft_span.index = last;
    draft_span.anchor = draft_span.next_anchor = kNoAnchor;
  }
  draft.span_count = draft.row_count;
}

}  // namespace atlas::kernels::cpu
