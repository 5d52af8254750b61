// Blocks, grids and shared memory of Gated DeltaNet's kernels on GPUs, for the records that launch
// them and for the kernels. Plain C++; nothing here changes a result.
#pragma once

#include <string_view>

#include "kernels/common/gdn.h"
#include "kernels/common/gpu_shapes.h"

namespace atlas::kernels {

/// Rows of a chunk that are done a row at a time, from a state and pending rows that stand in
/// shared memory; more are done as tiles.
inline constexpr uint32_t kGdnFewRows = 8;
/// Floats of the queries and keys of such rows; wider heads have fewer such rows.
inline constexpr uint32_t kGdnFewFloats = 2 * kGdnFewRows * 128;
constexpr bool gdn_few_rows(uint32_t rows, uint32_t key_dim) {
  return rows <= kGdnFewRows && 2 * rows * gdn_padded(key_dim) <= kGdnFewFloats;
}

/// Slices of operands that gdn_conv's tiles are made from: two buffers of
/// [kGdnSlice][kGdnSliceStride].
inline constexpr uint32_t kGdnSlice = 16;
inline constexpr uint32_t kGdnSliceStride = 2 * kGdnChunk + 4;  // 4: fewer bank conflicts
inline constexpr uint32_t kGdnSliceFloats = kGdnSlice * kGdnSliceStride;

/// `gdn_conv`: grid (key heads, value heads; tiles: rows of a span in one chunk).
inline constexpr uint32_t kGdnConvThreads = 256;
/// Keys of a chunk that few rows are multiplied with, as the slot holds them: [key_dim, kGdnChunk].
constexpr uint32_t gdn_conv_panel_floats(uint32_t key_dim) {
  return key_dim <= 128 ? key_dim * kGdnChunk : 0;  // wider heads are done as tiles
}
constexpr uint32_t gdn_conv_shared_bytes(uint32_t key_dim) {
  const uint32_t few = gdn_conv_panel_floats(key_dim) + kGdnFewFloats;
  return (few > 2 * kGdnSliceFloats ? few : 2 * kGdnSliceFloats) * sizeof(float);
}
constexpr LaunchShape gdn_conv_shape(const GdnShape& s, uint32_t max_rows, uint32_t sequences) {
  const uint64_t tiles = max_rows / kGdnChunk + 2ull * sequences;
  const auto most = static_cast<uint32_t>(tiles < max_rows ? tiles : max_rows);
  return {s.key_heads + s.value_heads, most, 1, kGdnConvThreads, gdn_conv_shared_bytes(s.key_dim)};
}

/// `gdn_attend`: grid (value heads * column parts, sequences). A block has a head's state for some
/// columns of values, 16 or 32. An H200 has three blocks of the fewer on every multiprocessor for
/// 48 heads of 128 columns, where of the more it would have one or two; the others' blocks are
/// limited by their shared memory.
constexpr uint32_t gdn_columns(std::string_view platform) { return platform == "h200" ? 16 : 32; }
inline constexpr uint32_t kGdnAttendThreads = 128;
constexpr uint32_t gdn_column_parts(uint32_t value_dim, uint32_t columns) {
  return (value_dim + columns - 1) / columns;
}
/// Rows and columns of a block of coefficients A and B; blocks do not begin in the same bank.
inline constexpr uint32_t kGdnGroup = 8;
inline constexpr uint32_t kGdnGroups = kGdnChunk / kGdnGroup;
inline constexpr uint32_t kGdnBlockStride = kGdnGroup * kGdnGroup + 8;
inline constexpr uint32_t kGdnBlocks = kGdnGroups * (kGdnGroups + 1) / 2;
/// Slices of rows that a warp has at hand or under way.
inline constexpr uint32_t kGdnRing = 4;
inline constexpr uint32_t kGdnRingFloats = 256;
/// In floats: V [kGdnChunk, columns]; twice, for chunks in turn, beta, G, e^G and e^(G_L - G)
/// [kGdnChunk] each; a and b [kGdnChunk] each; one after another, warps' slices, coefficients of
/// tiles (blocks of 8 by 8 up to the diagonal, of A and B), or what few rows need; then the state
/// [gdn_padded(key_dim), columns].
inline constexpr uint32_t kGdnWorkFloats = 2 * kGdnBlocks * kGdnBlockStride;
inline constexpr uint32_t kGdnGates = 4 * kGdnChunk;  // of a chunk
static_assert(kGdnWorkFloats >= kGdnFewFloats + 2 * kGdnFewRows * kGdnChunk + 4 * kGdnFewRows * 32);
/// Where a warp's slices stand: not among coefficients that another warp may still read when this
/// one has made its last sum. The first two warps have keys and read A, the third and fourth the
/// upper and lower rows of B.
constexpr uint32_t gdn_ring_place(uint32_t warp) {
  return (warp + (warp == 3 ? 1 : 0)) * kGdnRing * kGdnRingFloats;
}
static_assert(gdn_ring_place(2) <= kGdnBlocks * kGdnBlockStride);
static_assert(gdn_ring_place(3) >= (kGdnBlocks + 10) * kGdnBlockStride &&
              gdn_ring_place(3) + kGdnRing * kGdnRingFloats <= kGdnWorkFloats &&
              gdn_ring_place(2) + kGdnRing * kGdnRingFloats <= (kGdnBlocks + 10) * kGdnBlockStride);
constexpr uint32_t gdn_attend_shared_floats(uint32_t key_dim, uint32_t columns) {
  return (static_cast<uint32_t>(gdn_padded(key_dim)) + kGdnChunk) * columns + 2 * kGdnGates +
         2 * kGdnChunk + kGdnWorkFloats;
}
constexpr LaunchShape gdn_attend_shape(const GdnShape& s, uint32_t sequences, uint32_t columns) {
  return {s.value_heads * gdn_column_parts(s.value_dim, columns), sequences, 1, kGdnAttendThreads,
          gdn_attend_shared_floats(s.key_dim, columns) * static_cast<uint32_t>(sizeof(float))};
}

/// `gdn_step`: grid (value heads, sequences). Two threads have one column of a head's state in
/// their registers, half of its rows each.
inline constexpr uint32_t kGdnStepThreads = 256;
inline constexpr uint32_t kGdnStepDim = 128;
inline constexpr uint32_t kGdnStepTaps = 4;
constexpr bool gdn_can_step(const GdnShape& s) {
  return s.key_dim <= kGdnStepDim && s.value_dim <= kGdnStepDim && s.taps <= kGdnStepTaps;
}
/// Rows that it takes; they have one chunk.
inline constexpr uint32_t kGdnStepRows = kMaxVerifyRows;
static_assert(kGdnStepRows <= kGdnFewRows);
/// In floats: the chunk's keys [kGdnStepDim, kGdnChunk], later two rows of sums a row; keys and
/// queries; values, later outputs; A and B; p and r; beta and e^G [kGdnStepRows], G and e^(G_L - G)
/// [kGdnChunk]; then pending V [kGdnChunk, kGdnStepDim], which RDNA reads where they are: its
/// blocks have 64 KiB.
inline constexpr uint32_t kGdnStepPlaces =
    kGdnStepDim * kGdnChunk + 5 * kGdnStepRows * kGdnStepDim + 2 * kGdnStepRows * kGdnChunk +
    2 * kGdnStepRows + 2 * kGdnChunk;
inline constexpr uint32_t kGdnStepValues = kGdnChunk * kGdnStepDim;
static_assert(kGdnStepPlaces * sizeof(float) <= 65536);
constexpr LaunchShape gdn_step_shape(const GdnShape& s, uint32_t sequences, bool holds_values) {
  const uint32_t floats = kGdnStepPlaces + (holds_values ? kGdnStepValues : 0);
  return {s.value_heads, sequences, 1, kGdnStepThreads,
          floats * static_cast<uint32_t>(sizeof(float))};
}

/// `gdn_keep`: grid (key heads, sequences).
inline constexpr uint32_t kGdnKeepThreads = 256;
constexpr LaunchShape gdn_keep_shape(const GdnShape& s, uint32_t sequences) {
  return {s.key_heads, sequences, 1, kGdnKeepThreads, 0};
}

}  // namespace atlas::kernels
