// Parameters of grouped-query attention over paged keys and values (attention plugin `gqa`).
#pragma once

#include "kernels/common/control.h"
#include "kernels/common/params.h"

namespace atlas::kernels {

/// Positions in a page. Also the segment of the attention walk's contract.
inline constexpr uint32_t kGqaPageTokens = 64;

/// `gqa_write`: puts the rows' keys and values into their pages. One task a row.
/// A layer's part of a page is, for each kv head, keys [head_dim, kGqaPageTokens] (so that a score
/// is summed without crossing lanes), then values [kGqaPageTokens, head_dim], float32.
ATLAS_PARAMS(GqaWriteParams,
  const float* k;  // [m, kv_heads, head_dim]
  const float* v;
  const StepControl* control;
  unsigned char* pages;  // the layer's part of page 0
  uint64_t page_stride;
  uint64_t k_stride;
  uint64_t v_stride;
  uint32_t kv_heads;
  uint32_t head_dim;
);

/// `gqa_attend`: out = softmax(scale q k^T) v, causal, over positions 0..position of each row.
/// Contract `gqa_f32_s64`: segments of 64 positions ascending. In a segment, scores are summed over
/// d ascending with fma; the segment's maximum, its weights e^(s - m) and their sum (16 lanes, then
/// pairwise) and its value sum (positions ascending, fma) are joined to the running ones in order:
/// M' = max(M, m), both sides scaled by e^(. - M'). So a row's bits do not depend on other rows.
ATLAS_PARAMS(GqaAttendParams,
  const float* q;  // [m, heads, head_dim]
  float* out;      // [m, heads, head_dim]
  const StepControl* control;
  const unsigned char* pages;
  uint64_t page_stride;
  uint64_t q_stride;
  uint64_t out_stride;
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  float scale;
);

}  // namespace atlas::kernels
