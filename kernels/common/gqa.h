// Parameters and layouts of grouped-query attention over paged keys and values (plugin `gqa`).
#pragma once

#include "kernels/common/control.h"
#include "kernels/common/params.h"

namespace atlas::kernels {

/// Positions in a page.
inline constexpr uint32_t kGqaPageTokens = 64;
/// Positions in a block of the attention walk: part of the contract.
inline constexpr uint32_t kGqaBlockTokens = 256;

/// A layer's part of a page is, for each kv head, keys [head_dim, kGqaPageTokens] (so that a score
/// is summed without crossing lanes), then values [kGqaPageTokens, gqa_value_stride], float32.
/// Values are padded with zeros to whole groups of 16.
constexpr uint32_t gqa_value_stride(uint32_t head_dim) { return (head_dim + 15) / 16 * 16; }
constexpr uint64_t gqa_head_floats(uint32_t head_dim) {
  return uint64_t{kGqaPageTokens} * (head_dim + gqa_value_stride(head_dim));
}

/// Floats of one block's state of one query row: the value sum, then maximum and weight sum.
constexpr uint64_t gqa_partial_floats(uint32_t head_dim) { return gqa_value_stride(head_dim) + 16; }

/// Rows that a CPU task takes together: keys and values are read once for about 48 query rows.
constexpr uint32_t gqa_tile_rows(uint32_t group) {
  return group >= 48 ? 1 : group <= 3 ? 16 : 48 / group;
}

/// Scratch of a thread of the CPU's gqa_attend, in bytes: scores of a block, value sums of the
/// block and of all blocks, and ten numbers a query row.
constexpr uint64_t gqa_scratch_bytes(uint32_t heads, uint32_t kv_heads, uint32_t head_dim) {
  const uint32_t group = heads / kv_heads;
  const uint64_t rows = (gqa_tile_rows(group) * uint64_t{group} + 15) / 16 * 16;
  return rows * (kGqaBlockTokens + 2 * gqa_value_stride(head_dim) + 10) * sizeof(float);
}

inline constexpr uint32_t kGqaWriteRows = 16;

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `gqa_write`: puts the rows' keys and values into their pages, and clears the arrivals that
/// `gqa_attend` counts. Grid: ceil(max_rows / kGqaWriteRows); a task takes as many rows.
ATLAS_CONTROL_PARAMS(GqaWriteParams,
  const float* k;  // [m, kv_heads, head_dim]
  const float* v;
  const StepControl* control;
  const RowSet* rows;
  unsigned char* pages;  // the layer's part of page 0
  uint32_t* arrivals;    // [split_rows, kv_heads]
  uint64_t page_stride;  // bytes
  uint64_t k_stride;
  uint64_t v_stride;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t split_rows;
  uint32_t reserved;
);

/// `gqa_attend`: out = softmax(scale q k^T) v, causal, over positions 0..index of each row.
/// Contract `gqa_f32_b256`, for a query row: blocks of 256 positions. In a block, scores are
/// (sum over d ascending, by fma from zero) * scale; m is their maximum; weights are w = e^(s - m);
/// l is the sum of weights in 16 lanes (position % 16; then pairwise, 8, 4, 2, 1 apart); o is the
/// sum of w v over positions ascending, by fma from zero. Blocks are joined in ascending order: the
/// first is taken as it is, then M' = max(M, m), a = e^(M - M'), c = e^(m - M'), L = fma(l, c, L
/// a), O = fma(o, c, O a). At the end O / L. So a row's bits do not depend on other rows, nor on
/// who computes which block. Grid: `tasks`, a power of two. The kernel deals out the step's work,
/// which only the device knows, to tasks in bit-reversed order: any division of the grid into equal
/// ranges gets equal shares. Long contexts of few rows are split over tasks by blocks; who arrives
/// last joins them.
ATLAS_CONTROL_PARAMS(GqaAttendParams,
  const float* q;  // [m, heads, head_dim]
  float* out;      // [m, heads, head_dim]
  const StepControl* control;
  const RowSet* rows;
  const unsigned char* pages;
  uint32_t* arrivals;  // [split_rows, kv_heads]
  float* partials;     // [split_rows, heads, max_blocks, gqa_partial_floats]
  uint64_t page_stride;
  uint64_t q_stride;
  uint64_t out_stride;
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t tasks;
  uint32_t split_rows;  // rows of the step whose blocks may be split: the first ones
  uint32_t max_blocks;  // of one sequence
  float scale;
  uint32_t reserved;
);

// clang-format on
}  // namespace atlas::kernels
