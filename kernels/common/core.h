// Parameter structs of the core operations: those that belong to no weight format and no attention
// backend. Every platform has a kernel for each. Names are the kernels' names.
//
// Rows: `row_count` points to StepControl::row_count or ::logit_count. Activations are float32,
// row-major, m rows of a stride counted in elements. Grids: one task (or block) a row unless said;
// tasks past the count do nothing.
//
// "16 lanes": element i belongs to lane i % 16, a lane is summed in ascending order, and lanes are
// added pairwise, 8 apart, then 4, 2, 1. One order for every instruction set that has fused
// multiply-add; without it (x86 before 2013) products round once more, and bits differ.
#pragma once

#include "kernels/common/control.h"
#include "kernels/common/params.h"

namespace atlas::kernels {

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `control_fetch` (grid 1): takes ring entry (next_step - 1) % ring_entries into `entry`; resets
/// slots, applies page and count updates, expands rows and logit rows. A row's index is the slot's
/// length plus its place in the sequence's share. The entry is checked first, against the limits
/// and the bucket: a wrong one changes nothing, and the step runs without rows (kErrorEntry).
ATLAS_CONTROL_PARAMS(ControlFetchParams,
  StepControl* control;
  uint32_t max_rows;        // of the step's bucket; the records after this one are sized for it
  uint32_t max_logit_rows;
);

/// `control_commit` (grid 1): slots gain their rows, last token and counts; results are written to
/// the ring, the step number last with release order; next_step advances. A slot with an error
/// gives no token until its reset.
ATLAS_CONTROL_PARAMS(ControlCommitParams,
  StepControl* control;
);

/// `rms_norm`: y[r,i] = (x[r,i] * s) * weight[i], s = 1 / sqrt(mean_i(x[r,i]^2) + epsilon). Squares
/// are summed in 16 lanes, by fma.
ATLAS_PARAMS(RmsNormParams,
  const float* x;       // [m, n]
  const float* weight;  // [n]
  float* y;             // [m, n]
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t n;
  float epsilon;
);

/// `rope`: rotates the first `rotary_dim` (even) elements of every head of x in place by the angle
/// float32(position) * inverse_frequency[i], a product in float32 as in transformers; its cosine
/// and sine are within 1e-6 of the true ones at any position. Then a pair (a, b) becomes
/// (a c - b s, b c + a s). interleaved 0: element i pairs with i + rotary_dim / 2; 1: elements 2i
/// and 2i + 1.
ATLAS_CONTROL_PARAMS(RopeParams,
  float* x;  // [m, heads, head_dim]
  const float* inverse_frequency;  // [rotary_dim / 2]
  const StepControl* control;
  uint64_t x_stride;
  uint32_t heads;
  uint32_t head_dim;
  uint32_t rotary_dim;
  uint32_t interleaved;
  float magnitude;  // scales cos and sin (YaRN's attention factor); 1 otherwise
  uint32_t reserved;
);

/// `silu_mul`: y[r,i] = silu(x[r,i]) * x[r,n+i] with silu(a) = a / (1 + e^-a).
ATLAS_PARAMS(SiluMulParams,
  const float* x;  // [m, 2n]: gate, then up
  float* y;        // [m, n]
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t n;
  uint32_t reserved;
);

/// `add`: y[r,i] += x[r,i].
ATLAS_PARAMS(AddParams,
  const float* x;
  float* y;
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t n;
  uint32_t reserved;
);

/// `add_bias`: y[r,i] += bias[i].
ATLAS_PARAMS(AddBiasParams,
  const float* bias;
  float* y;
  const uint32_t* row_count;
  uint64_t y_stride;
  uint32_t n;
  uint32_t reserved;
);

/// `select_logit_rows`: y[j,:] = x[logit_rows[j],:], for the step's logit rows.
ATLAS_CONTROL_PARAMS(SelectLogitRowsParams,
  const float* x;
  float* y;
  const StepControl* control;
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t n;
  uint32_t reserved;
);

/// `sample` (grid max_sequences): draws a token for each sequence with kSequenceSample, from the
/// logits of its last logit row, and writes control->sampled (kNoToken for the others). Logits stay
/// as they are. The stages, each over what the one before it left, in float32; ties go to the lower
/// id everywhere:
/// 1. bias: x[token] += bias, in the entry's order (-infinity bans a token).
/// 2. penalties: ids of prompt or output: x < 0 ? x * repetition : x / repetition; then
///    x -= frequency * (times in the output), and x -= presence if that is not 0.
/// 3. temperature 0 (or below): the largest x, and the stages below do not apply.
///    Otherwise z = (x - max x) / temperature.
/// 4. top_k: the k largest z.
/// 5. top_p: of the rest in descending order (then ascending id) the shortest run whose weights
/// reach
///    top_p of all their weights; a weight is e^z * 2^44 cut to an integer, so sums have no order.
/// 6. min_p: those with e^z >= min_p (the largest has 1).
/// 7. the largest z + g. Gumbel noise g = -log(e), e = -log1p(-u), u = (b + 1/2) / 2^31, b the
/// upper 31
///    bits of word (token / 16) % 4 of Philox4x32-10 with key (seed low, seed high) and counter
///    (token / 64 * 16 + token % 16, row index, 0, 0), the index that of the row whose logits these
///    are. So a token's noise depends on seed, position and id alone.
/// NaN or +infinity among the x, or none above -infinity: kErrorNotFinite, and no token.
ATLAS_CONTROL_PARAMS(SampleParams,
  StepControl* control;
  const float* logits;  // [max_logit_rows, vocab]
  float* scratch;       // [max_sequences, vocab]
);

/// `score` (grid max_logit_rows): log-probabilities for sequences that want them, over the raw
/// logits; after `sample`. log sum e^(l - max) is summed in 16 lanes over runs of 4,096 logits, the
/// runs in float64; the alternatives are the largest logits in descending order, ties to the lower
/// id.
ATLAS_CONTROL_PARAMS(ScoreParams,
  StepControl* control;
  const float* logits;
);

// clang-format on
}  // namespace atlas::kernels
