// Parameter structs of the core operations: those that belong to no weight format and no attention
// backend. Every platform has a kernel for each. Names are the kernels' names.
//
// Rows: `row_count` points to StepControl::row_count or ::logit_count. Activations are float32,
// row-major, m rows of a stride counted in elements. Grids: one task (or block) a row unless said.
#pragma once

#include "kernels/common/control.h"
#include "kernels/common/params.h"

namespace atlas::kernels {

/// `control_fetch` (grid 1): takes ring entry (next_step - 1) % ring_entries into `entry`; resets
/// slots, applies page updates, expands rows and logit rows. A row's position is the slot's length
/// plus its index in the sequence's share.
ATLAS_PARAMS(ControlFetchParams,
  StepControl* control;
);

/// `control_commit` (grid 1): slots gain their rows, last token and counts; results are written to
/// the ring, the step number last with release order; next_step advances.
ATLAS_PARAMS(ControlCommitParams,
  StepControl* control;
);

/// `rms_norm`: y[r,i] = x[r,i] * weight[i] / sqrt(mean_i(x[r,i]^2) + epsilon). The mean of squares is
/// summed in 16 float32 lanes (element i in lane i % 16) that are then added pairwise (8, 4, 2, 1
/// apart): one order for every instruction set.
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

/// `rope`: rotates the first `rotary_dim` elements of every head of x in place by angle
/// position * inverse_frequency[i]; the angle is computed in float32 as transformers does.
/// interleaved 0: element i pairs with i + rotary_dim / 2; 1: elements 2i and 2i + 1.
ATLAS_PARAMS(RopeParams,
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
ATLAS_PARAMS(SelectLogitRowsParams,
  const float* x;
  float* y;
  const StepControl* control;
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t n;
  uint32_t reserved;
);

/// `sample` (grid max_sequences): for each sequence with kSequenceSample, from the logits of its last
/// logit row: bias, penalties, temperature, top_k, top_p, min_p, then the argmax of logit + Gumbel
/// noise from Philox4x32-10 keyed by (seed, position, token id); greedy is the argmax, lowest id
/// first. Logits are not changed. Writes control->sampled.
ATLAS_PARAMS(SampleParams,
  StepControl* control;
  const float* logits;  // [max_logit_rows, vocab]
  float* scratch;       // [max_sequences, 2 * vocab]
);

/// `score` (grid max_logit_rows): log-probabilities for sequences that want them; after `sample`.
ATLAS_PARAMS(ScoreParams,
  StepControl* control;
  const float* logits;
);

}  // namespace atlas::kernels
