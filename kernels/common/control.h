// The control block: what changes from one run of a step to the next, as kernels see it.
//
// Two parts. The host writes StepEntry records into a ring in pinned memory; once submitted, an
// entry is immutable until its step has finished. The device owns StepControl: the first record
// of every step (`control_fetch`) takes the next ring entry, applies the host's commands and
// expands the rows; the last one (`control_commit`) adds the rows that count to the slots and
// writes the results. So a step's launch carries no argument, and the host submits step n+1 while
// step n runs.
//
// The host zero-fills every device array once. A wrong entry (an index or a count out of its
// bounds, a step number that is not the next) never writes outside the arrays: the step runs with
// no rows, and its result says kErrorEntry.
#pragma once

#include <cstdint>

#include "kernels/common/params.h"

namespace atlas::kernels {

inline constexpr uint32_t kMaxTopLogprobs = 20;  // of OpenAI's API
inline constexpr uint32_t kNoToken = 0xffffffffu;
inline constexpr uint32_t kNoAnchor = 0xffffffffu;
/// Rows of one sequence in a verify step: the token sampled last and the drafts after it.
inline constexpr uint32_t kMaxVerifyRows = 8;
inline constexpr uint32_t kMaxDrafts = kMaxVerifyRows - 1;
/// Ids before a row that an n-gram may reach.
inline constexpr uint32_t kHistoryIds = 3;

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// How large the arrays of a control block are. Fixed for an engine; part of every layout.
ATLAS_PARAMS(ControlLimits,
  uint32_t ring_entries;   // steps in flight, at most
  uint32_t max_rows;       // of the largest bucket
  uint32_t max_sequences;  // in one step
  uint32_t max_logit_rows;
  uint32_t max_slots;      // live sequences
  uint32_t max_pages;      // of one sequence
  uint32_t max_page_updates;  // in one step
  uint32_t max_biases;     // logit_bias entries in one step, over all its sequences
  uint32_t max_count_updates;  // in one step
  uint32_t vocab;
  uint32_t pool_pages;     // pages there are: what a PageUpdate may name
  uint32_t max_positions;  // of one sequence; max_pages hold as many
  uint32_t anchor_tokens;  // anchors stand at multiples of this; 0: the model has none
  uint32_t anchors;        // there are: what an entry may name
  uint32_t drafts;         // drafted after a sampled token, at most kMaxDrafts; 0: no draft head
  uint32_t reserved;
);

/// Flags of SequenceInput.
enum SequenceFlags : uint32_t {
  kSequenceReset = 1,        // the slot begins anew at `reset_length` positions, its counts cleared
  kSequenceFeedBack = 2,     // the rows are the slot's last sampled id and its drafts, not `ids`
  kSequenceSample = 4,       // sample after the last row, and make that the slot's last id
  kSequenceCount = 8,        // keep token counts: from the reset on, for sequences with penalties
  kSequencePromptRows = 16,  // with kSequenceCount: mark the rows' ids as prompt
};

/// One sequence's sampling, as the request gave it. Neutral values switch a stage off.
ATLAS_PARAMS(SamplingInput,
  float temperature;         // 0: greedy
  float top_p;               // 1: off
  float min_p;               // 0: off
  uint32_t top_k;            // 0: off
  float repetition_penalty;  // 1: off; over prompt and output
  float presence_penalty;    // 0: off; over output
  float frequency_penalty;   // 0: off; over output
  uint32_t bias_first;       // of the entry's biases
  uint32_t bias_count;
  uint32_t reserved;
  uint64_t seed;
);

/// One sequence's share of a step: rows [first_row, first_row + row_count). Shares follow one
/// another without gaps: first_row and logit_first are the sums of the counts before. A slot
/// appears once. With kSequenceFeedBack the counts are upper bounds: the device takes as many rows
/// as the slot has drafts, cut at the next anchor position and at max_positions, and gives each of
/// them logits; RowSpan says what the step really runs.
ATLAS_PARAMS(SequenceInput,
  uint32_t slot;
  uint32_t flags;
  uint32_t first_row;
  uint32_t row_count;
  uint32_t reset_length;
  uint32_t logit_first;     // of the step's logit rows
  uint32_t logit_count;     // the sequence's last rows, as many as this, get logits
  uint32_t score_top;       // 0..kMaxTopLogprobs alternatives to report a logit row
  uint32_t score;           // 1: log-probabilities are wanted
  uint32_t count_first;     // of the entry's count updates
  uint32_t count_count;
  uint32_t next_token;      // id after the last row where the host knows it, or kNoToken
  uint32_t anchor;          // with kSequenceReset: holds the state at reset_length, or kNoAnchor: at 0
  uint32_t spare_anchor;    // free for a state that this step reaches, or kNoAnchor: it reaches none
  uint32_t history[kHistoryIds];  // with kSequenceReset: ids before reset_length, the nearest first
  uint32_t reserved;
  SamplingInput sampling;
);

ATLAS_PARAMS(PageUpdate,
  uint32_t slot;
  uint32_t index;  // of the page in the sequence
  uint32_t page;   // of the pool
  uint32_t reserved;
);

ATLAS_PARAMS(LogitBias,
  uint32_t token;
  float bias;
);

/// Adds to a slot's counts what no row of a step brings: prompt ids whose positions were cached, or
/// the output of a sequence that is run again. `count` is coded as StepControl::counts.
ATLAS_PARAMS(CountUpdate,
  uint32_t token;
  uint32_t count;  // added times * 2 + (1: in the prompt)
);

/// Fixed head of a ring entry; its arrays follow at the offsets that EntryLayout computes.
ATLAS_PARAMS(StepEntry,
  uint64_t step;  // 1, 2, 3, ... of the engine
  uint32_t row_count;
  uint32_t sequence_count;
  uint32_t logit_count;
  uint32_t page_update_count;
  uint32_t bias_count;
  uint32_t count_update_count;
);

/// Byte offsets of a ring entry's arrays, in the order of declaration.
ATLAS_PARAMS(EntryLayout,
  uint64_t sequences;     // SequenceInput[max_sequences]
  uint64_t page_updates;  // PageUpdate[max_page_updates]
  uint64_t biases;        // LogitBias[max_biases]
  uint64_t count_updates; // CountUpdate[max_count_updates]
  uint64_t ids;           // uint32[max_rows]: the rows' token ids
  uint64_t targets;       // uint32[max_logit_rows]: the id to score at a logit row, or kNoToken
  uint64_t bytes;         // of an entry
);

/// What a step tells the host about one sequence.
ATLAS_PARAMS(SequenceResult,
  uint32_t slot;
  uint32_t length;        // positions of the slot after the step
  uint32_t error;         // StepErrorBits since the slot's reset
  uint32_t token_count;   // sampled: the accepted drafts and the one after them
  uint32_t row_count;     // that the step ran
  uint32_t logit_first;   // of its scores in this result
  uint32_t anchor;        // the slot's after the step: the spare one, if the step has written it
  uint32_t anchor_index;  // its position
  uint32_t tokens[kMaxVerifyRows];
);

enum StepErrorBits : uint32_t {
  kErrorNotFinite = 1,  // NaN or +infinity among the logits, or none that is finite
  kErrorEntry = 2,      // the entry is wrong: the step did nothing
  kErrorNoToken = 4,    // kSequenceFeedBack without a token sampled before; id 0 took its place
  kErrorFeed = 8,       // data that the host had to bring could not be read
  kErrorFeedLate = 16,  // it did not come in time
};

/// Log-probabilities at one logit row, over the raw logits (before penalties and temperature). They
/// are -infinity where the model gave -infinity, and all of them where the logits were not finite.
ATLAS_PARAMS(RowScore,
  uint32_t target;  // the id that was scored: the entry's target, else the sampled id, else kNoToken
  float target_logprob;
  uint32_t target_rank;  // 1: the most likely; ties count in favour of the lower id
  uint32_t top_count;
  uint32_t top_ids[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];
);

/// Fixed head of a result record (one a ring entry, pinned); arrays follow.
ATLAS_PARAMS(StepResult,
  uint64_t step;  // written last: the number of the step when its record is complete
  uint32_t sequence_count;
  uint32_t logit_count;
  uint32_t error;  // StepErrorBits of the step, all its sequences together
  uint32_t reserved;
);

ATLAS_PARAMS(ResultLayout,
  uint64_t sequences;  // SequenceResult[max_sequences]
  uint64_t scores;     // RowScore[max_logit_rows]: of sequences with `score`
  uint64_t bytes;
);

/// Device-owned, one a slot.
ATLAS_PARAMS(SlotState,
  uint32_t length;     // committed positions
  uint32_t last_token;
  uint32_t generated;  // tokens sampled since the reset
  uint32_t error;      // StepErrorBits since the reset
  uint64_t step;       // the last one that named the slot
  uint32_t anchor;        // state at anchor_index, or kNoAnchor: zeros at 0
  uint32_t anchor_index;
  uint32_t draft_count;   // of `drafts`: proposals for the tokens after last_token
  uint32_t drafts[kMaxDrafts];
  uint32_t history[kHistoryIds];  // ids before position `length`, the nearest first, or kNoToken
  uint32_t reserved;
);

/// A row of the running step, expanded by `control_fetch`.
ATLAS_PARAMS(RowInput,
  uint32_t sequence;  // of the entry
  uint32_t slot;
  uint32_t token;
  uint32_t index;       // in the sequence: what its page and its place in it follow from
  int32_t position[3];  // for rotary embeddings; equal to `index` for text
  uint32_t reserved;
);

/// One sequence's rows in a set of rows, which follow one another in position.
ATLAS_PARAMS(RowSpan,
  uint32_t sequence;      // of the entry
  uint32_t slot;
  uint32_t first_row;
  uint32_t row_count;
  uint32_t index;         // position of the first row
  uint32_t logit_first;   // of the step's logit rows
  uint32_t logit_count;   // the last rows, as many as this
  uint32_t anchor;        // the state at anchor_index, or kNoAnchor: zeros at 0
  uint32_t anchor_index;
  uint32_t next_anchor;   // where this step leaves the state at next_index, or kNoAnchor: it does not
  uint32_t next_index;    // the last multiple of anchor_tokens at or before the last row
  uint32_t accepted;      // sampling: rows whose tokens are given out, less one
);

/// Rows that a record walks: those of the step, or the draft head's (one a sequence).
ATLAS_PARAMS(RowSet,
  RowInput* rows;
  RowSpan* spans;      // one a sequence that has rows, in their order
  uint32_t row_count;
  uint32_t span_count;
);

/// Where everything lies on the device; a constant of the engine, in device memory. `step_*` arrays
/// describe the running step. Kernels that walk rows read a count first.
ATLAS_PARAMS(StepControl,
  ControlLimits limits;
  EntryLayout entry_layout;
  ResultLayout result_layout;
  const unsigned char* ring;   // pinned: ring_entries entries
  unsigned char* results;      // pinned: ring_entries results
  unsigned char* entry;        // device copy of the running step's entry
  SlotState* slots;            // [max_slots]
  uint32_t* block_table;       // [max_slots, max_pages]
  uint32_t* counts;            // [max_slots, vocab]: times in the output * 2 + (1: in the prompt)
  uint32_t* logit_rows;        // [max_logit_rows]: which row a logit row is
  uint32_t* sampled;           // [max_logit_rows]: tokens given out, else kNoToken
  uint32_t* next_ids;          // [max_rows]: the id after each row, for the draft head
  uint32_t* draft_sources;     // [max_sequences]: the step's row that a draft row goes on from
  RowScore* scores;            // [max_logit_rows]
  uint64_t next_step;          // device-owned; the step that `control_fetch` takes next
  uint32_t sequence_count;     // of the running step
  uint32_t logit_count;
  uint32_t error;              // StepErrorBits of the running step
  uint32_t reserved;
  RowSet step;                 // spans[s] is sequence s: [max_rows], [max_sequences]
  RowSet draft;                // [max_sequences] of both
);

// clang-format on

/// Digest of the whole control block: part of the digest of every parameter struct that points to
/// it.
inline constexpr uint64_t kControlDigest = combined_digest(
    {kControlLimitsDigest, kSamplingInputDigest, kSequenceInputDigest, kPageUpdateDigest,
     kLogitBiasDigest, kCountUpdateDigest, kStepEntryDigest, kEntryLayoutDigest,
     kSequenceResultDigest, kRowScoreDigest, kStepResultDigest, kResultLayoutDigest,
     kSlotStateDigest, kRowInputDigest, kRowSpanDigest, kRowSetDigest, kStepControlDigest});

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

constexpr EntryLayout entry_layout(const ControlLimits& limits) {
  EntryLayout layout{};
  layout.sequences = align_up(sizeof(StepEntry), 64);
  layout.page_updates = layout.sequences + limits.max_sequences * sizeof(SequenceInput);
  layout.biases = layout.page_updates + limits.max_page_updates * sizeof(PageUpdate);
  layout.count_updates = layout.biases + limits.max_biases * sizeof(LogitBias);
  layout.ids = layout.count_updates + limits.max_count_updates * sizeof(CountUpdate);
  layout.targets = layout.ids + limits.max_rows * sizeof(uint32_t);
  layout.bytes = align_up(layout.targets + limits.max_logit_rows * sizeof(uint32_t), 256);
  return layout;
}

constexpr ResultLayout result_layout(const ControlLimits& limits) {
  ResultLayout layout{};
  layout.sequences = align_up(sizeof(StepResult), 64);
  layout.scores = layout.sequences + limits.max_sequences * sizeof(SequenceResult);
  layout.bytes = align_up(layout.scores + limits.max_logit_rows * sizeof(RowScore), 256);
  return layout;
}

/// Typed views of an entry, for host and device alike.
template <typename T>
const T* entry_array(const unsigned char* entry, uint64_t offset) {
  return reinterpret_cast<const T*>(entry + offset);
}

}  // namespace atlas::kernels

/// ATLAS_PARAMS for a kernel that reads the control block: another control.h is another digest.
#define ATLAS_CONTROL_PARAMS(Name, ...)                                                 \
  struct Name {                                                                         \
    __VA_ARGS__                                                                         \
  };                                                                                    \
  inline constexpr uint64_t k##Name##Digest = ::atlas::kernels::combined_digest(        \
      {::atlas::kernels::declaration_digest(#Name "{" #__VA_ARGS__ "}") ^ sizeof(Name), \
       ::atlas::kernels::kControlDigest})
