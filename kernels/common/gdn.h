// Parameters, layouts and contract of Gated DeltaNet (plugin `gdn`): a convolution, then a
// recurrence whose state stands at anchors, every kGdnChunk positions, and is never updated between
// them.
#pragma once

#include "kernels/common/control.h"
#include "kernels/common/params.h"

namespace atlas::kernels {

/// Positions in a chunk: what anchors are apart. Part of the contract.
inline constexpr uint32_t kGdnChunk = 64;
/// Taps of the convolution and elements of a head, at most.
inline constexpr uint32_t kGdnMaxTaps = 16;
inline constexpr uint32_t kGdnMaxDim = 256;

struct GdnShape {
  uint32_t key_heads, value_heads, key_dim, value_dim, taps;
};

/// A head's vector, padded with zeros to whole groups of 16.
constexpr uint64_t gdn_padded(uint32_t dim) { return (uint64_t{dim} + 15) / 16 * 16; }
/// Channels of the convolution: queries, keys, values.
constexpr uint64_t gdn_channels(const GdnShape& s) {
  return 2ull * s.key_heads * s.key_dim + uint64_t{s.value_heads} * s.value_dim;
}
/// Rows of a slot's ring: the taps before a row and a verify step's rows together, and a power of
/// two.
constexpr uint32_t gdn_ring_rows(uint32_t taps) {
  uint32_t rows = 1;
  while (rows < taps - 1 + kMaxVerifyRows) rows *= 2;
  return rows;
}

/// Where the keys of a chunk's first kMaxVerifyRows positions stand among a slot's kGdnKeyPlaces:
/// `gdn_early_keys` places behind where the others' order would have them, those of every second
/// chunk. So a step that folds a full chunk, whose keys many blocks read, may leave the next one's.
inline constexpr uint32_t kGdnKeyPlaces = kGdnChunk + kMaxVerifyRows;
constexpr uint32_t gdn_early_keys(uint32_t position) {
  return position / kGdnChunk % 2 * kGdnChunk;
}
constexpr uint32_t gdn_key_place(uint32_t position) {
  const uint32_t place = position % kGdnChunk;
  return place < kMaxVerifyRows ? place + gdn_early_keys(position) : place;
}

/// A slot, in floats from its start. Pending rows are those of the chunk that the slot's length is
/// in, or has just filled: at j those of the position that is j modulo kGdnChunk, keys at
/// gdn_key_place of it.
/// ring [gdn_ring_rows, channels]: rows of qkv, by position modulo the rows;
/// keys [key_heads, key_dim, kGdnKeyPlaces]; values V [value_heads, kGdnChunk,
/// gdn_padded(value_dim)]; decays G [value_heads, kGdnChunk].
constexpr uint64_t gdn_slot_keys(const GdnShape& s) {
  return align_up(gdn_ring_rows(s.taps) * gdn_channels(s), 16);
}
constexpr uint64_t gdn_slot_values(const GdnShape& s) {
  return gdn_slot_keys(s) + uint64_t{s.key_heads} * s.key_dim * kGdnKeyPlaces;
}
constexpr uint64_t gdn_slot_decays(const GdnShape& s) {
  return gdn_slot_values(s) + uint64_t{s.value_heads} * kGdnChunk * gdn_padded(s.value_dim);
}
constexpr uint64_t gdn_slot_floats(const GdnShape& s) {
  return gdn_slot_decays(s) + uint64_t{s.value_heads} * kGdnChunk;
}

/// An anchor, in floats from its start: M [value_heads, key_dim, gdn_padded(value_dim)]; then the
/// rows of qkv at the taps - 1 positions before the anchor's [taps - 1, channels].
constexpr uint64_t gdn_anchor_history(const GdnShape& s) {
  return uint64_t{s.value_heads} * s.key_dim * gdn_padded(s.value_dim);
}
constexpr uint64_t gdn_anchor_floats(const GdnShape& s) {
  return gdn_anchor_history(s) + (s.taps - 1) * gdn_channels(s);
}

/// A row of the workspace, in floats: queries [key_heads], keys [key_heads], each
/// gdn_padded(key_dim), values [value_heads, gdn_padded(value_dim)].
constexpr uint64_t gdn_row_floats(const GdnShape& s) {
  return 2 * s.key_heads * gdn_padded(s.key_dim) + s.value_heads * gdn_padded(s.value_dim);
}

/// What a GPU's workspace holds of a row behind all rows' floats: a key head's dot products with
/// the keys of the row's chunk, k_i.k_j [kGdnChunk] and q_i.k_j [kGdnChunk]; then all rows' decays
/// G [value_heads].
constexpr uint64_t gdn_row_dots(const GdnShape& s) { return 2ull * s.key_heads * kGdnChunk; }

/// Scratch of a CPU thread, in bytes: gdn_conv holds the taps of a head and a row of zeros.
constexpr uint64_t gdn_conv_scratch_bytes(const GdnShape& s) {
  const uint32_t dim = s.key_dim > s.value_dim ? s.key_dim : s.value_dim;
  return (s.taps + 1) * gdn_padded(dim) * sizeof(float);
}
/// gdn_attend: the chunk's keys; per row of it two products with M and two rows of dot products;
/// the sums of a few rows; four numbers a row.
inline constexpr uint32_t kGdnSumRows = 6;
constexpr uint64_t gdn_attend_scratch_bytes(const GdnShape& s) {
  return (uint64_t{s.key_dim} * kGdnChunk + 2 * kGdnChunk * gdn_padded(s.value_dim) +
          2 * kGdnChunk * kGdnChunk + kGdnSumRows * gdn_padded(s.value_dim) + 4 * kGdnChunk) *
         sizeof(float);
}

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `gdn_conv`: x[t,c] = silu(sum over taps i ascending of conv[c,i] * qkv[t - (taps - 1) + i, c], by
/// fma from zero), silu(a) = a / (1 + e^-a); rows before the sequence are 0, rows before the step
/// come from the slot's ring or, at positions before the anchor's, from the anchor. Queries and keys
/// are then made of unit length per head: x * s, s = 1 / sqrt(sum of x^2 + 1e-6), squares summed in
/// 16 lanes by fma; queries are scaled further, (x * s) * (1 / sqrt(key_dim)). Leaves the rows of
/// qkv in the ring and those before next_index in the next anchor. CPU grid: 2 key_heads +
/// value_heads, a task takes one head's channels of all rows. On a GPU, whose blocks run together,
/// the ring is gdn_keep's to write, and the dot products among keys, which value heads share, are
/// made here.
ATLAS_CONTROL_PARAMS(GdnConvParams,
  const float* qkv;   // [m, channels]
  const float* conv;  // [channels, taps], the oldest tap first
  float* mixed;       // [m, gdn_row_floats]
  float* dots;        // [m, key_heads, 2, kGdnChunk]; null on a CPU
  const RowSet* rows;
  unsigned char* slots;
  unsigned char* anchors;
  uint64_t slot_stride;  // bytes
  uint64_t anchor_stride;
  uint64_t qkv_stride;
  uint32_t key_heads;
  uint32_t value_heads;
  uint32_t key_dim;
  uint32_t value_dim;
  uint32_t taps;
  uint32_t reserved;
);

/// `gdn_attend`: the recurrence. Contract `gdn_f32_c64`, per value head, whose key head is
/// h * key_heads / value_heads: chunks are [64 c, 64 c + 64) of absolute positions; M0 is the state
/// at the chunk's start (zeros at position 0), i and j count positions of the chunk.
///   beta_i = 1 / (1 + e^-b_i)
///   g_i = -(e^a_log * softplus(a_i + dt_bias)), softplus(x) = max(x, 0) + log1p(e^-|x|)
///   G_i = G_(i-1) + g_i, from 0
///   p_i = M0^T k_i, r_i = M0^T q_i, k_i.k_j, q_i.k_j: sums over d ascending, by fma from zero
///   A_ij = (beta_i * (k_i.k_j)) * e^(G_i - G_j), B_ij = (q_i.k_j) * e^(G_i - G_j)
///   s_i = sum over j < i ascending of A_ij V_j, z_i = sum over j <= i ascending of B_ij V_j, by fma
///         from zero
///   V_i = fma(beta_i, fma(-e^(G_i), p_i, v_i), -s_i)
///   o_i = fma(e^(G_i), r_i, z_i)
/// and once a row past the chunk comes, with L its last position,
///   M1 = e^(G_L) * M0, then += (e^(G_L - G_j) * k_j) V_j^T for j ascending, by fma.
/// So a row's bits do not depend on how rows are divided into steps. The state at next_index is left
/// in next_anchor; `anchor` is only read. CPU grid: value_heads * sequences, a task takes value head
/// task / sequences of span task % sequences. On a GPU gdn_keep puts G into the slot.
ATLAS_CONTROL_PARAMS(GdnAttendParams,
  const float* mixed;    // [m, gdn_row_floats]
  const float* dots;     // [m, key_heads, 2, kGdnChunk]; null on a CPU, as decays
  float* decays;         // [m, value_heads]: G
  const float* b;        // [m, value_heads]
  const float* a;        // [m, value_heads]
  const float* a_log;    // [value_heads]
  const float* dt_bias;  // [value_heads]
  float* out;            // [m, value_heads, value_dim]
  const RowSet* rows;
  unsigned char* slots;
  unsigned char* anchors;
  uint64_t slot_stride;
  uint64_t anchor_stride;
  uint64_t b_stride;
  uint64_t a_stride;
  uint64_t out_stride;
  uint32_t key_heads;
  uint32_t value_heads;
  uint32_t key_dim;
  uint32_t value_dim;
  uint32_t taps;
  uint32_t sequences;
);

/// `gdn_keep`: puts the keys of the rows of a span's last chunk among the slot's pending ones, which
/// gdn_attend still reads; on a GPU also their G and the last rows of qkv. CPU grid: key_heads *
/// sequences, as gdn_attend.
ATLAS_CONTROL_PARAMS(GdnKeepParams,
  const float* mixed;
  const float* qkv;     // as gdn_conv's; null on a CPU, as decays
  const float* decays;  // [m, value_heads]
  const RowSet* rows;
  unsigned char* slots;
  uint64_t slot_stride;
  uint64_t qkv_stride;
  uint32_t key_heads;
  uint32_t value_heads;
  uint32_t key_dim;
  uint32_t value_dim;
  uint32_t taps;
  uint32_t sequences;
);

/// `gdn_step`, on GPUs: gdn_conv, gdn_attend and gdn_keep in one, with their bits, for spans of at
/// most kMaxVerifyRows rows of one chunk; others run no task. Heads have at most kGdnStepDim elements
/// and kGdnStepTaps taps. With a norm_weight what `out` gets goes on as norm_gate (core_fused.h) has
/// it: o * (1 / sqrt(mean of o^2 + epsilon)) * norm_weight, then times sigmoid(gate) or silu(gate),
/// and `encoded`, if there is one, gets the rows encoded as core.h says, too: heads then are
/// multiples of 32 elements, and a row is one of 128.
ATLAS_CONTROL_PARAMS(GdnStepParams,
  const float* qkv;   // as gdn_conv's
  const float* conv;
  const float* b;     // as gdn_attend's
  const float* a;
  const float* a_log;
  const float* dt_bias;
  float* out;
  const float* norm_weight;  // [value_dim], or null
  const float* gate;         // [m, value_heads, value_dim]
  void* encoded;
  const RowSet* rows;
  unsigned char* slots;
  unsigned char* anchors;
  uint64_t slot_stride;
  uint64_t anchor_stride;
  uint64_t qkv_stride;
  uint64_t b_stride;
  uint64_t a_stride;
  uint64_t out_stride;
  uint64_t gate_stride;
  uint32_t key_heads;
  uint32_t value_heads;
  uint32_t key_dim;
  uint32_t value_dim;
  uint32_t taps;
  float epsilon;
  uint32_t silu;
  uint32_t reserved;
);

// clang-format on

/// The shape that a parameter struct of this header states.
template <typename Params>
constexpr GdnShape gdn_shape(const Params& p) {
  return {p.key_heads, p.value_heads, p.key_dim, p.value_dim, p.taps};
}

/// Whether a span's anchors are as the kernels need them: pending rows of one chunk at most, and a
/// place for a state that the span reaches. control_fetch lets no other pass.
constexpr bool gdn_serves(const RowSpan& span) {
  const uint64_t last = uint64_t{span.index} + span.row_count - 1;
  const uint64_t reached = last / kGdnChunk * kGdnChunk;
  return span.row_count != 0 && last <= 0xffffffffu && span.anchor_index % kGdnChunk == 0 &&
         (span.anchor != kNoAnchor || span.anchor_index == 0) && span.index >= span.anchor_index &&
         span.index - span.anchor_index <= kGdnChunk &&
         (reached == span.anchor_index ||
          (span.next_anchor != kNoAnchor && span.next_index == reached));
}

}  // namespace atlas::kernels
