// Parameters, layouts and contract of sparse attention with a block indexer (plugin `qsa`): every
// row chooses blocks of positions by pooled index keys, and attends to them as plugin `gqa` does.
#pragma once

#include "kernels/common/gqa.h"

namespace atlas::kernels {

/// Positions of a block, at most: anchors stand at multiples of kQsaAnchorTokens, which are ends of
/// blocks, so an anchor holds nothing.
inline constexpr uint32_t kQsaAnchorTokens = 64;
/// Index heads and elements of one, at most.
inline constexpr uint32_t kQsaMaxHeads = 64;
inline constexpr uint32_t kQsaMaxIndexDim = 512;

/// Blocks in a page, and the same padded to whole groups of 16.
constexpr uint32_t qsa_page_blocks(uint32_t ratio) { return kGqaPageTokens / ratio; }
constexpr uint32_t qsa_pooled_stride(uint32_t ratio) {
  return (qsa_page_blocks(ratio) + 15) / 16 * 16;
}

/// A layer's part of a page, in floats: for each kv head keys [kGqaPageTokens / 4, head_dim, 4] (so
/// that four positions that follow one another lie together), then values as gqa has them; after
/// all heads the blocks' pooled index keys [index_dim, qsa_pooled_stride].
inline constexpr uint32_t kQsaKeyRun = 4;
constexpr uint64_t qsa_pooled_offset(uint32_t kv_heads, uint32_t head_dim) {
  return kv_heads * gqa_head_floats(head_dim);
}
constexpr uint64_t qsa_page_floats(uint32_t kv_heads, uint32_t head_dim, uint32_t index_dim,
                                   uint32_t ratio) {
  return qsa_pooled_offset(kv_heads, head_dim) + uint64_t{index_dim} * qsa_pooled_stride(ratio);
}

/// A slot: raw index keys [qsa_ring_rows, index_dim], by position modulo the rows: those of a block
/// before its last position and a verify step's together, and a power of two.
constexpr uint32_t qsa_ring_rows(uint32_t ratio) {
  uint32_t rows = 1;
  while (rows < ratio - 1 + kMaxVerifyRows) rows *= 2;
  return rows;
}

/// Rows whose scores are computed together: pooled keys are read once for them.
inline constexpr uint32_t kQsaTileRows = 4;
/// Pages that a task of qsa_score takes.
inline constexpr uint32_t kQsaScorePages = 32;
inline constexpr uint32_t kQsaWriteRows = 16;

/// Floats of one row's scores over `pages` pages.
constexpr uint64_t qsa_score_floats(uint32_t pages, uint32_t ratio) {
  return align_up(uint64_t{pages} * qsa_page_blocks(ratio), 16);
}

/// Scratch of a CPU thread, in bytes: dot products of a page; for selecting also the tile's scores
/// where the workspace has no room for them, and a histogram.
constexpr uint64_t qsa_score_scratch_bytes(uint32_t heads, uint32_t ratio) {
  return uint64_t{kQsaTileRows} * heads * qsa_pooled_stride(ratio) * sizeof(float);
}
inline constexpr uint32_t kQsaHistogram = 2048;
constexpr uint64_t qsa_select_scratch_bytes(uint32_t heads, uint32_t ratio, uint64_t score_floats) {
  return qsa_score_scratch_bytes(heads, ratio) +
         (kQsaTileRows * score_floats + kQsaHistogram) * sizeof(float);
}
/// The same of qsa_attend: gqa_attend's, and the keys of 64 places.
constexpr uint64_t qsa_attend_scratch_bytes(uint32_t heads, uint32_t kv_heads, uint32_t head_dim) {
  return gqa_scratch_bytes(heads, kv_heads, head_dim) +
         uint64_t{head_dim} * kGqaPageTokens * sizeof(float);
}

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `qsa_write`: puts the rows' keys and values into their pages, clears the arrivals that qsa_attend
/// counts, and makes the index key of every block that a row completes: the mean of its positions'
/// raw keys (added in ascending order, times 1 / ratio), then x * s * k_norm with s = 1 / sqrt(mean of
/// x^2 + epsilon) as `rms_norm` has it, then rotated at the block's first position as `rope` does. Raw
/// keys of rows before the step come from the slot's ring; the rows' own are left there. Grid:
/// ceil(max_rows / kQsaWriteRows); a task takes as many rows.
ATLAS_CONTROL_PARAMS(QsaWriteParams,
  const float* k;                  // [m, kv_heads, head_dim]
  const float* v;
  const float* index_k;            // [m, index_dim]
  const float* k_norm;             // [index_dim]
  const float* inverse_frequency;  // [rotary_dim / 2]
  const StepControl* control;
  const RowSet* rows;
  unsigned char* pages;  // the layer's part of page 0
  unsigned char* slots;
  uint32_t* arrivals;    // [split_rows, kv_heads]
  uint64_t page_stride;  // bytes
  uint64_t slot_stride;
  uint64_t k_stride;
  uint64_t v_stride;
  uint64_t index_k_stride;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t index_dim;
  uint32_t ratio;
  uint32_t rotary_dim;
  uint32_t split_rows;
  float epsilon;
  float magnitude;
);

/// `qsa_score` and `qsa_select`: what each row attends to. At position p there are nb = (p + 1) /
/// ratio blocks to choose from. If nb <= budget_blocks, all of them, and no list is written. Else
/// lists[r] becomes the budget_blocks blocks of the largest score, ties to the lower block, in
/// ascending order; score(b) = sum over heads h ascending of max(0, q_h . key_b), dot products by
/// fma over d ascending from zero; what is not a number counts as 0.
/// qsa_score computes scores of the first score_rows rows, split over tasks by pages; qsa_select
/// those of the others itself. Grid: `tasks`, a power of two, as gqa_attend.
ATLAS_CONTROL_PARAMS(QsaSelectParams,
  const float* q;  // [m, heads, head_dim]: normed and rotated
  const StepControl* control;
  const RowSet* rows;
  const unsigned char* pages;
  float* scores;    // [score_rows, score_stride]
  uint32_t* lists;  // [m, budget_blocks]
  uint64_t page_stride;
  uint64_t pooled_offset;
  uint64_t q_stride;
  uint64_t score_stride;
  uint32_t heads;
  uint32_t head_dim;
  uint32_t ratio;
  uint32_t budget_blocks;
  uint32_t score_rows;
  uint32_t tasks;
);

/// `qsa_attend`: out = softmax(scale q k^T) v over a list of positions: those of the row's blocks,
/// ascending, then the positions from ratio * nb to its own. Contract `qsa_f32_b256`: as
/// `gqa_f32_b256` with places of the list instead of positions (blocks of 256 places, lanes by place).
/// Where all blocks are chosen the list is the identity, and the bits are those of gqa_attend. A row's
/// bits depend on neither other rows nor who computes which block.
ATLAS_CONTROL_PARAMS(QsaAttendParams,
  const float* q;  // [m, heads, head_dim]
  float* out;      // [m, heads, head_dim]
  const StepControl* control;
  const RowSet* rows;
  const unsigned char* pages;
  const uint32_t* lists;  // [m, budget_blocks]
  uint32_t* arrivals;     // [split_rows, kv_heads]
  float* partials;        // [split_rows, heads, max_blocks, gqa_partial_floats]
  uint64_t page_stride;
  uint64_t q_stride;
  uint64_t out_stride;
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t ratio;
  uint32_t budget_blocks;
  uint32_t tasks;
  uint32_t split_rows;
  uint32_t max_blocks;  // of a list, in blocks of 256 places
  float scale;
  uint32_t reserved;
);

// clang-format on

/// How many of a span's rows, which are its first, attend to all positions before them.
constexpr uint32_t qsa_dense_rows(const RowSpan& span, uint32_t ratio, uint32_t budget_blocks) {
  const uint64_t first_sparse = (uint64_t{budget_blocks} + 1) * ratio - 1;  // its position
  if (first_sparse <= span.index) return 0;
  const uint64_t rows = first_sparse - span.index;
  return rows < span.row_count ? static_cast<uint32_t>(rows) : span.row_count;
}

}  // namespace atlas::kernels
