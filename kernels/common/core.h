// Parameter structs of the core operations: those that belong to no weight format and no attention
// backend. Every platform has a kernel for each. Names are the kernels' names.
//
// Rows: `row_count` points to a count on the device, of a RowSet, of the step's logit rows or of
// the rows that experts have. Activations are float32, row-major, m rows of a stride counted in
// elements; a row may be divided into groups (heads, streams) of a stride of their own. Grids: one
// task (or block) a row unless said; tasks past the count do nothing.
//
// "16 lanes": element i belongs to lane i % 16, a lane is summed in ascending order, and lanes are
// added pairwise, 8 apart, then 4, 2, 1. One order for every instruction set that has fused
// multiply-add; without it (x86 before 2013) products round once more, and bits differ.
//
// `encoded`: on GPUs, if it is not null, rows of y (its groups side by side) are written there,
// too, in the input encoding "bf16_b32" (gpu_weights.h), for products that read them; where the
// address is odd, in "bf16_w64" (gpu_wgmma.h) from the byte before on. `encoded_f16`: the same in
// "f16_b32" or "f16_w64" (gpu_half.h). Null on CPUs.
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

/// `rms_norm`, for each group of a row: y[i] = (x[i] * s) * weight[i], s = 1 / sqrt(mean_i(x[i]^2) +
/// epsilon). Squares are summed in 16 lanes, by fma.
ATLAS_PARAMS(RmsNormParams,
  const float* x;       // [m, groups, n]
  const float* weight;  // [n], or [groups, n]
  float* y;             // [m, groups, n]
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t groups;
  uint32_t n;
  uint32_t x_group_stride;
  uint32_t y_group_stride;
  uint32_t weight_group_stride;  // 0: one weight for all groups
  float epsilon;
  void* encoded;  // of groups of more than kNormNarrow elements
  void* encoded_f16;
);

/// `rope`: rotates the first `rotary_dim` (even) elements of every head of x in place by the angle
/// float32(position) * inverse_frequency[i], a product in float32 as in transformers; its cosine
/// and sine are within 1e-6 of the true ones at any position. Then a pair (a, b) becomes
/// (a c - b s, b c + a s). interleaved 0: element i pairs with i + rotary_dim / 2; 1: elements 2i
/// and 2i + 1.
ATLAS_CONTROL_PARAMS(RopeParams,
  float* x;  // [m, heads, head_dim]
  const float* inverse_frequency;  // [rotary_dim / 2]
  const RowSet* rows;
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
  void* encoded;  // see above
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

/// `copy_groups`: y[r,g,i] = x[r,g,i].
ATLAS_PARAMS(CopyGroupsParams,
  const float* x;  // [m, groups, n]; an x_group_stride of 0 repeats one group
  float* y;
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t groups;
  uint32_t n;
  uint32_t x_group_stride;
  uint32_t y_group_stride;
);

/// `gate_mul`: y[r,g,i] = x[r,g,i] * act(gate[r,g,i]); act(a) = 1 / (1 + e^-a), or a / (1 + e^-a).
ATLAS_PARAMS(GateMulParams,
  const float* x;     // [m, groups, n]
  const float* gate;  // [m, groups, n]
  float* y;           // [m, groups, n]; may be x
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t gate_stride;
  uint64_t y_stride;
  uint32_t groups;
  uint32_t n;
  uint32_t x_group_stride;
  uint32_t gate_group_stride;
  uint32_t y_group_stride;
  uint32_t silu;  // 0: sigmoid
  void* encoded;  // see above
);

/// `silu`: y[r,i] = silu(x[r,i] * scale).
ATLAS_PARAMS(SiluParams,
  const float* x;
  float* y;
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t n;
  float scale;
  void* encoded;  // see above
);

/// `select_rows`: y[j,:] = x[index[j],:].
ATLAS_PARAMS(SelectRowsParams,
  const float* x;
  float* y;
  const uint32_t* index;
  const uint32_t* row_count;  // of y
  uint64_t x_stride;
  uint64_t y_stride;
  uint32_t n;
  uint32_t reserved;
);

// ---- Gated residual streams: X is [m, streams, n] ----

/// `stream_mix`: u[r,i] = (sum over s ascending of sigmoid(gate[r,s,i]) * x[r,s,i], by fma from zero)
/// / streams.
ATLAS_PARAMS(StreamMixParams,
  const float* gate;  // [m, streams, n]
  const float* x;     // [m, streams, n], normed
  float* u;           // [m, n]
  const uint32_t* row_count;
  uint64_t gate_stride;
  uint64_t x_stride;
  uint64_t u_stride;
  uint32_t streams;
  uint32_t n;
  void* encoded;  // of u
  void* encoded_f16;
);

/// `stream_inject`: X[r,s,i] = fma(2 * sigmoid(c[r,s] / streams), y[r,i], X[r,s,i]).
ATLAS_PARAMS(StreamInjectParams,
  const float* c;  // [m, streams]
  const float* y;  // [m, n]
  float* x;        // [m, streams, n]
  const uint32_t* row_count;
  uint64_t c_stride;
  uint64_t y_stride;
  uint64_t x_stride;
  uint32_t streams;
  uint32_t n;
);

// ---- Hashed n-gram embedding ----

inline constexpr uint32_t kMaxNgram = kHistoryIds + 1;
inline constexpr uint32_t kMaxNgramHeads = 64;

/// What the device asks of a host feed for one step; keys follow, [row_count, heads]. Pinned, one a
/// ring entry.
ATLAS_PARAMS(FeedRequest,
  uint64_t step;  // written last
  uint32_t row_count;
  uint32_t heads;
);

/// What the host answers; then [max_rows] status words (0: good, else StepErrorBits) and, at
/// `feed_rows_offset`, [max_rows, width] float32.
ATLAS_PARAMS(FeedAnswer,
  uint64_t step;  // written last
  uint64_t reserved;
);

constexpr uint64_t feed_keys_offset() { return sizeof(FeedRequest); }
constexpr uint64_t feed_request_bytes(uint64_t max_rows, uint64_t heads) {
  return align_up(feed_keys_offset() + max_rows * heads * sizeof(uint64_t), 256);
}
constexpr uint64_t feed_status_offset() { return sizeof(FeedAnswer); }
constexpr uint64_t feed_rows_offset(uint64_t max_rows) {
  return align_up(feed_status_offset() + max_rows * sizeof(uint32_t), 64);
}
constexpr uint64_t feed_answer_bytes(uint64_t max_rows, uint64_t width) {
  return align_up(feed_rows_offset(max_rows) + max_rows * width * sizeof(float), 256);
}

/// `ngram_keys` (grid 1): asks the host for the table rows of each row of the step. With t0 the row's
/// id and t1, t2, ... those before it in its sequence, eos_id in place of all that lie before the
/// sequence's begin or at or before the nearest eos_id among t1, t2, ...: mix_1 = t0 * m0, mix_s =
/// mix_(s-1) xor t_(s-1) * m_(s-1), in 64 bits; head h of n-gram size s + 1 has key
/// offset_h + mix_s mod size_h. Each size has heads / (ngram - 1) heads; ngram is 2 to kMaxNgram.
ATLAS_CONTROL_PARAMS(NgramKeysParams,
  const StepControl* control;
  unsigned char* requests;       // pinned: ring_entries of request_bytes
  const uint64_t* multipliers;   // [ngram]
  const uint64_t* head_sizes;    // [heads], bigrams first
  const uint64_t* head_offsets;  // [heads]
  uint64_t request_bytes;
  uint32_t ngram;
  uint32_t heads;
  uint32_t eos_id;
  uint32_t reserved;
);

/// `feed_take`: y = the answer's rows. Each task waits until the host has answered the step, at most
/// `timeout_ns`; late, or with a bad status, the row is 0 and its slot gets kErrorFeedLate or
/// the status (atomically: other rows' tasks may do so too). The first late task sets kErrorFeedLate
/// in control->error too, and those that begin after it do not wait any more.
ATLAS_CONTROL_PARAMS(FeedTakeParams,
  StepControl* control;
  const unsigned char* answers;  // pinned: ring_entries of answer_bytes
  float* y;                      // [m, width]
  uint64_t answer_bytes;
  uint64_t max_rows;  // of an answer
  uint64_t y_stride;
  uint64_t timeout_ns;
  uint32_t width;
  uint32_t reserved;
);

/// `ngram_gate`: g = (sum_i key[s,i] * query[s,i], in 16 lanes by fma) / sqrt(n); g = sign(g) *
/// sqrt(max(|g|, 1e-6)), 0 where g is 0; y[s,i] = sigmoid(g) * value[i].
ATLAS_PARAMS(NgramGateParams,
  const float* key;    // [m, streams, n], normed
  const float* query;  // [m, streams, n], normed
  const float* value;  // [m, n]
  float* y;            // [m, streams, n]
  const uint32_t* row_count;
  uint64_t key_stride;
  uint64_t query_stride;
  uint64_t value_stride;
  uint64_t y_stride;
  uint32_t streams;
  uint32_t n;
);

/// Rows of a convolution's history ring: more than its reach and a verify step's rows together, and
/// a power of two.
constexpr uint32_t conv_ring_rows(uint32_t reach) {
  uint32_t rows = 1;
  while (rows < reach + kMaxVerifyRows) rows *= 2;
  return rows;
}

/// `ngram_conv`: X[r,c] = (X[r,c] + gated[r,c]) + silu(sum over taps k ascending of w[c,k] * in[t -
/// dilation * (taps - 1 - k), c], by fma from zero); rows before the sequence are 0. Inputs of rows
/// before the step come from the slot's ring (row = position modulo conv_ring_rows) or, at positions
/// before the anchor's, from the anchor, whose row j is that of position anchor_index - reach + j.
/// Leaves the rows' inputs in the ring, and in the next anchor what precedes next_index. Grid: tasks
/// over runs of 256 channels.
ATLAS_CONTROL_PARAMS(NgramConvParams,
  const float* in;      // [m, channels]
  const float* gated;   // [m, channels]
  const float* weight;  // [channels, taps]
  float* x;             // [m, channels]
  const RowSet* rows;
  unsigned char* slots;    // float [conv_ring_rows(reach), channels] a slot
  unsigned char* anchors;  // float [reach, channels] an anchor
  uint64_t slot_stride;    // bytes
  uint64_t anchor_stride;
  uint64_t in_stride;
  uint64_t gated_stride;
  uint64_t x_stride;
  uint32_t channels;
  uint32_t taps;
  uint32_t dilation;
  uint32_t reserved;
);
inline constexpr uint32_t kConvChannels = 256;  // of a task
inline constexpr uint32_t kMaxConvTaps = 8;     // more than that run no task

// ---- Mixture of experts ----

inline constexpr uint32_t kMaxExpertsPerToken = 32;

/// `route`: the `top` largest logits of a row, ties to the lower expert, in descending order, into
/// experts and weights: weight = e^(l - max), divided by their sum (normalize), or by the sum over
/// all experts; both in 16 lanes. A NaN is chosen as -infinity would be, and makes all of the row's
/// weights NaN; so does +infinity.
ATLAS_PARAMS(RouteParams,
  const float* logits;  // [m, experts]
  uint32_t* chosen;     // [m, top]
  float* weights;       // [m, top]
  const uint32_t* row_count;
  uint64_t logits_stride;
  uint32_t experts;
  uint32_t top;
  uint32_t normalize;
  uint32_t reserved;
);

/// `group_experts` (grid 1): sorts (row, choice) by expert, rows ascending within one. Place i of
/// this order takes row source[i]; place[r,j] is where row r's choice j stands.
ATLAS_PARAMS(GroupExpertsParams,
  const uint32_t* chosen;  // [m, top]
  uint32_t* offsets;       // [experts + 1]: first place of each expert; the last is m * top
  uint32_t* source;        // [m * top]
  uint32_t* place;         // [m, top]
  const uint32_t* row_count;
  uint32_t experts;
  uint32_t top;
);

/// `combine_experts`: y[r,i] = sum over j ascending of weights[r,j] * x[place[r,j],i], by fma from
/// zero; with a shared expert then y = fma(sigmoid(shared_gate[r]), shared[r,i], y).
ATLAS_PARAMS(CombineExpertsParams,
  const float* x;            // [m * top, n], in the order of places
  const float* weights;      // [m, top]
  const uint32_t* place;     // [m, top]
  const float* shared;       // [m, n], or null
  const float* shared_gate;  // [m], or null: 1
  float* y;                  // [m, n]
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t shared_stride;
  uint64_t shared_gate_stride;
  uint64_t y_stride;
  uint32_t top;
  uint32_t n;
);

// ---- Sampling ----

/// `sample` (grid max_sequences): draws a token for each sequence with kSequenceSample from the
/// logits of its last logit row; with kSequenceFeedBack from the first one on, as long as the token
/// is the next row's, which makes that row's draft accepted. Writes control->sampled (kNoToken where
/// none is given out) and the span's `accepted`; tokens given out are counted at once. Logits stay as
/// they are. The stages, each over what the one before it left, in float32; ties go to the lower id
/// everywhere:
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

/// `draft_begin` (grid 1), after `sample`: next_ids of the step's rows (the next row's id, the sampled
/// one after the last row that counts, else the entry's next_token or id 0), and the draft set: a row
/// for each sequence that sampled and has room for `drafts` more positions, going on from its last
/// counted row, at that row's position.
ATLAS_CONTROL_PARAMS(DraftBeginParams,
  StepControl* control;
);

/// `draft_sample` (grid max_sequences): draws draft number `number` of each draft row as `sample`
/// would at its position, with the same noise. Then the row moves on to it: its id and the next
/// position. An error gives no more drafts to the slot, and is none of the step's.
ATLAS_CONTROL_PARAMS(DraftSampleParams,
  StepControl* control;
  const float* logits;  // [max_sequences, vocab]
  float* scratch;       // [max_sequences, vocab]
  uint32_t number;
  uint32_t reserved;
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
