// EXL3 on GPUs: the resident layout, the contract of its products, and the parameters and grids of
// its kernels. What the bits mean is in exl3.h.
//
// Contract "exl3_f16": weights exactly the float16 numbers of the codebook, activations rounded
// once to float16, float32 sums by matrix instructions.
//   1. v = x * suh rounded; butterflies of strides 1, 2, 4, ... 64 (a + b, a - b); times kExl3Norm.
//   2. k is cut into segments (exl3_segment_begin) of at most 512. Of a row and segment, the
//   largest
//      |v| is brought to [2^14, 2^15) by a power of two, v times that is rounded to float16:
//      nothing overflows, and what is 2^-29 of the largest is still a normal number. A segment of
//      zeros, or one with an infinity or a NaN (which then is in y too), keeps the power 1.
//   3. Of an output and segment a sum from zero by matrix instructions of 16 inputs; which 16 stand
//      in one instruction is part of the resident layout. Times the segment's power of two (exact).
//   4. total = total + sum, segments ascending, from 0; butterflies over 128 outputs of strides 1,
//   2,
//      4, ... 64; times kExl3Norm; times svh. With ADD, y + that.
// The same bits for every row count, and for experts; of one platform's matrix instruction.
//
// Resident layout: suh f16[k], svh f16[n], zeros to a multiple of 64; counters u32[n / 128], zero
// between launches; zeros to a multiple of 128; then groups of outputs (16 for mma.sync, 32 for
// WMMA), in a group pairs of lane segments in ascending k. A lane segment is the 32 windows of a
// tile's columns c and c + 8, 16 * units bits of its ring. A pair gives each lane two of them:
//   mma.sync: 128 inputs; lane 4 c + q has segment c of tiles q and 4 + q: its windows are its part
//             of fragment A in four instructions, each over a quarter of four tiles.
//   WMMA:     32 inputs by two tile columns; lane 8 j + c has segment c of column j of two tiles:
//             all 16 inputs of two outputs, which is fragment A; lanes 16..31 read the same.
// A lane's two segments are `units` words: first all whole quads of words of all lanes, then a pair
// of words of each, then one word of each, so that a lane reads 16, 8 and 4 bytes at a time. Bits
// are the checkpoint's, in another order: 128 outputs have 8 * units * k bytes.
#pragma once

#include "kernels/common/device/fragments.h"
#include "kernels/common/exl3.h"

namespace atlas::kernels {

inline constexpr char kExl3GpuContract[] = "exl3_f16";

/// The layouts of the two matrix instructions.
enum class Exl3Lanes : uint32_t { kMmaSync, kWmma };

struct Exl3Shape {
  uint32_t lanes;     // that hold different words
  uint32_t outputs;   // of a group
  uint32_t inputs;    // of a pair
  uint32_t row_tile;  // rows that one instruction multiplies
};
constexpr Exl3Shape exl3_shape(Exl3Lanes form) {
  return form == Exl3Lanes::kMmaSync ? Exl3Shape{32, 16, 128, 8} : Exl3Shape{16, 32, 32, 16};
}
/// Bytes of a pair of lane segments of all lanes.
constexpr uint32_t exl3_pair_bytes(Exl3Lanes form, uint32_t units) {
  return exl3_shape(form).lanes * units * 4;
}
/// Of sizes with or without their padding, as in exl3.h; below, sizes are padded ones.
constexpr uint64_t exl3_gpu_group_bytes(uint32_t units, uint64_t k) {
  return 8 * exl3_padded(k) * units;
}
constexpr uint64_t exl3_counter_offset(uint64_t n, uint64_t k) { return exl3_head_bytes(n, k); }
constexpr uint64_t exl3_gpu_head_bytes(uint64_t n, uint64_t k) {
  return (exl3_head_bytes(n, k) + 4 * (exl3_padded(n) / kExl3Block) + 127) / 128 * 128;
}
constexpr uint64_t exl3_gpu_bytes(uint32_t units, uint64_t n, uint64_t k) {
  return exl3_gpu_head_bytes(n, k) + exl3_padded(n) / kExl3Block * exl3_gpu_group_bytes(units, k);
}

/// Which of a lane's words has unit `unit` (16 bits) of its segment `half`, and whether in the high
/// half. With an odd number of units the last units of both segments share a word, the first
/// segment's in the high half.
struct Exl3Unit {
  uint32_t word;
  bool high;
};
constexpr Exl3Unit exl3_unit(uint32_t units, uint32_t half, uint32_t unit) {
  if (units % 2 == 0) return {half * (units / 2) + unit / 2, unit % 2 == 0};
  if (unit + 1 == units) return {units / 2, half == 0};
  return {half * (units / 2 + 1) + unit / 2, unit % 2 == 0};
}
/// Where word `word` of lane `lane` stands in a pair: bytes.
constexpr uint32_t exl3_word_offset(uint32_t lanes, uint32_t units, uint32_t lane, uint32_t word) {
  const uint32_t quads = units / 4, rest = word - 4 * quads;
  if (word < 4 * quads) return (word / 4 * lanes + lane) * 16 + word % 4 * 4;
  const uint32_t begin = quads * lanes * 16;
  if (units % 4 >= 2 && rest < 2) return begin + lane * 8 + rest * 4;
  return begin + (units % 4 >= 2 ? lanes * 8 : 0) + lane * 4;
}
/// Where unit `unit` of segment `segment` (0..7) of the tile in tile row `row` (of k) and tile
/// column `column` stands: bytes from the begin of the groups.
constexpr uint64_t exl3_gpu_unit_offset(Exl3Lanes form, uint32_t units, uint64_t k, uint64_t row,
                                        uint64_t column, uint32_t segment, uint32_t unit) {
  const Exl3Shape shape = exl3_shape(form);
  const uint32_t columns = shape.outputs / kExl3Tile, rows = shape.inputs / kExl3Tile;
  const uint64_t pair = column / columns * (k / shape.inputs) + row / rows;
  const auto in_pair = static_cast<uint32_t>(row % rows),
             in_group = static_cast<uint32_t>(column % columns);
  const bool mma = form == Exl3Lanes::kMmaSync;
  const uint32_t half = mma ? in_pair / 4 : in_pair;
  const uint32_t lane = mma ? 4 * segment + in_pair % 4 : 8 * in_group + segment;
  const Exl3Unit at = exl3_unit(units, half, unit);
  return pair * exl3_pair_bytes(form, units) + exl3_word_offset(shape.lanes, units, lane, at.word) +
         (at.high ? 2 : 0);
}

// ---- Segments of k ----

inline constexpr uint32_t kExl3SegmentBlocks = 4;  // blocks of 128, at most
constexpr uint32_t exl3_segments(uint32_t k) {
  return (k / kExl3Block + kExl3SegmentBlocks - 1) / kExl3SegmentBlocks;
}
/// The first block of 128 of a segment: they are as equal as can be. (A product of 32 bits: its
/// division is on the way of a launch's first loads.)
constexpr uint32_t exl3_segment_begin(uint32_t k, uint32_t segment) {
  return segment * (k / kExl3Block) / exl3_segments(k);
}

// ---- Encoded rows ----

/// Encoded rows stand in the order of fragment B. A step is what two lane segments are multiplied
/// with: 64 inputs of 8 rows, or 16 of 16 rows, of which lanes read 16 bytes in each of two halves.
constexpr uint32_t exl3_step_bytes(Exl3Lanes form) {
  return form == Exl3Lanes::kMmaSync ? 1024 : 512;
}
constexpr uint64_t exl3_row_tile_bytes(Exl3Lanes form, uint64_t k) {
  return uint64_t{exl3_shape(form).row_tile} * k * 2;
}
/// Bytes of `rows` encoded rows.
constexpr uint64_t exl3_encoded_bytes(Exl3Lanes form, uint64_t rows, uint64_t k) {
  const uint32_t tile = exl3_shape(form).row_tile;
  return (rows + tile - 1) / tile * exl3_row_tile_bytes(form, k);
}
/// Where a lane reads its 16 bytes of a row: bytes from the begin of the row's tile and step. `q`:
/// the tile of four that the lane has (mma.sync).
constexpr uint32_t exl3_encoded_lane(Exl3Lanes form, uint32_t row, uint32_t q) {
  return form == Exl3Lanes::kMmaSync ? row % 8 * 64 + q * 16 : row % 16 * 16;
}
/// Where element `e` of 16 stands in a lane's 32 bytes: for WMMA in order; for mma.sync a pair of
/// the first eight is followed by that of the last eight which the same instruction takes.
constexpr uint32_t exl3_element_offset(Exl3Lanes form, uint32_t e) {
  return form == Exl3Lanes::kMmaSync ? e % 8 / 2 * 8 + e / 8 * 4 + e % 2 * 2 : 2 * e;
}
/// Where element `k` of row `row` stands: bytes. An even one and the next stand together.
constexpr uint64_t exl3_encoded_offset(Exl3Lanes form, uint64_t width, uint64_t row, uint64_t k) {
  const uint32_t step = form == Exl3Lanes::kMmaSync ? 64 : 16;
  const uint32_t tile = static_cast<uint32_t>(k % step) / kExl3Tile;
  const uint32_t element = exl3_element_offset(form, static_cast<uint32_t>(k % kExl3Tile));
  return row / exl3_shape(form).row_tile * exl3_row_tile_bytes(form, width) +
         k / step * exl3_step_bytes(form) + element / 16 * (exl3_step_bytes(form) / 2) +
         exl3_encoded_lane(form, static_cast<uint32_t>(row % 16), tile) + element % 16;
}

/// Weights that one launch takes with the same rows: its parts.
inline constexpr uint32_t kExl3Parts = 4;

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// exl3_encode: steps 1 and 2 of row source(i) of x, or of x's row i, for each of some weights. Rows
/// are those of *row_count, or of experts, each with its own suh, if there are offsets. Grid
/// (exl3_encode_blocks(rows), segments, parts).
ATLAS_PARAMS(Exl3EncodeParams,
  const float* x;
  const void* weight[kExl3Parts];  // of expert 0
  uint64_t expert_bytes[kExl3Parts];
  void* encoded[kExl3Parts];
  float* powers[kExl3Parts];  // [segments, rows]: what a segment's sum is multiplied with
  const uint32_t* row_count;  // or null
  const uint32_t* offsets;    // [experts + 1], or null
  const uint32_t* source;     // or null
  uint64_t x_stride;          // elements
  uint32_t k;
  uint32_t inputs;            // k without its padding, which counts as zeros
  uint32_t experts;
  uint32_t rows;              // room for so many
  uint32_t parts;
  uint32_t reserved;
);

/// exl3_many_<codebook>: a product from encoded rows, grid (n / 128, tiles of rows). A run is all rows,
/// or those of one expert.
ATLAS_PARAMS(Exl3ProductGpuParams,
  const void* encoded;
  const float* powers;
  const void* weight;    // of expert 0
  float* y;
  const uint32_t* row_count;
  const uint32_t* offsets;
  uint64_t y_stride;
  uint64_t expert_bytes;
  uint32_t n;
  uint32_t k;
  uint32_t units;
  uint32_t experts;
  uint32_t rows;         // room for so many
  uint32_t epilogue;     // ATLAS_EPILOGUE_*
  uint32_t outputs;      // n without its padding
  uint32_t reserved;
);

/// exl3_few_<codebook>: products from encoded rows, or from x where there are none; grid (blocks of all
/// parts, runs, segments). The outputs of parts stand side by side in `sums`.
ATLAS_PARAMS(Exl3FewParams,
  void* weight[kExl3Parts];            // of expert 0; its counters are written
  uint64_t expert_bytes[kExl3Parts];
  uint32_t first_block[kExl3Parts];    // blocks of the parts before; of parts that are not: 2^32 - 1
  uint32_t n[kExl3Parts];              // padded
  uint32_t outputs[kExl3Parts];        // n without its padding
  uint32_t k;
  uint32_t inputs;                     // k without its padding
  uint32_t units;
  uint32_t experts;
  uint32_t rows;                       // room for so many
  uint32_t columns;                    // n of all parts together
  uint32_t epilogue;                   // ATLAS_EPILOGUE_*
  uint32_t by_row;   // runs of the grid are counted by rows: one that begins no run does nothing
  uint32_t turns;                      // exl3_few_turns
  uint32_t reserved;
  const uint32_t* row_count;
  const uint32_t* offsets;
  const uint32_t* source;              // of x
  const float* x;                      // if rows are not encoded
  uint64_t x_stride;
  const void* encoded[kExl3Parts];     // or null
  const float* powers[kExl3Parts];
  float* sums;                         // [segments, rows, columns]
  float* y[kExl3Parts];
  uint64_t y_stride[kExl3Parts];
);

// clang-format on

/// Warps of a block of exl3_few; each does one group of outputs of one segment, or two.
inline constexpr uint32_t kExl3FewWarps = 4;
inline constexpr uint32_t kExl3FewThreads = kExl3FewWarps * device::kMatrixLanes;
constexpr uint32_t exl3_few_outputs(Exl3Lanes form) {
  return kExl3FewWarps * exl3_shape(form).outputs;
}
constexpr uint32_t exl3_few_blocks(Exl3Lanes form, uint32_t n, uint32_t turns) {
  return n / exl3_few_outputs(form) / turns;
}
/// Groups of outputs that a warp does one after the other, at most: a block ends with 128 outputs.
constexpr uint32_t exl3_few_most_turns(Exl3Lanes form) {
  return 2 * exl3_few_outputs(form) <= kExl3Block ? 2 : 1;
}
/// And of a launch that has `blocks` with one:
/// what a block does before and after its weights costs as much as a third of their decoding, so
/// two where every unit of the device then still has three blocks or four, which hide one another's
/// latencies (with 132 units 1,000 blocks are faster as 500, 800 slower as 400).
constexpr uint32_t exl3_few_turns(Exl3Lanes form, uint64_t blocks, uint32_t units) {
  return blocks >= 7 * uint64_t{units} ? exl3_few_most_turns(form) : 1;
}
/// Weights under way to shared memory: so many pairs of a group. WMMA's come by registers.
inline constexpr uint32_t kExl3Ahead = 4;
constexpr uint32_t exl3_ring_bytes(Exl3Lanes form, uint32_t units, uint32_t pairs) {
  return form == Exl3Lanes::kMmaSync ? pairs * exl3_pair_bytes(form, units) : 0;
}
/// Rows that a block of exl3_few encodes at a time, and bytes of one: rows do not meet in a bank.
inline constexpr uint32_t kExl3StagedRows = 8;
inline constexpr uint32_t kExl3StagedRowBytes = kExl3SegmentBlocks * kExl3Block * 2 + 16;
/// `encodes`: rows are not encoded yet.
constexpr uint32_t exl3_few_shared(Exl3Lanes form, uint32_t units, bool encodes) {
  const uint32_t rows = encodes ? kExl3StagedRows * (kExl3StagedRowBytes + 4) : 0;
  return 64 + kExl3FewWarps * exl3_ring_bytes(form, units, kExl3Ahead) + rows;
}

inline constexpr uint32_t kExl3EncodeWarps = kExl3SegmentBlocks;
inline constexpr uint32_t kExl3EncodeThreads = kExl3EncodeWarps * device::kMatrixLanes;
/// exl3_encode: with few rows a block does a segment of one row, a warp 128 elements, for its
/// latency; with many a segment of so many rows, a warp whole segments, for its instructions.
inline constexpr uint32_t kExl3EncodeRows = 2 * kExl3EncodeWarps;
inline constexpr uint32_t kExl3EncodeFew = 128;
constexpr uint32_t exl3_encode_blocks(uint32_t rows) {
  return rows <= kExl3EncodeFew ? rows : (rows + kExl3EncodeRows - 1) / kExl3EncodeRows;
}

/// exl3_many: a block does 128 outputs of so many rows, each of its warps a group of outputs; a
/// weight is decoded once for all of them. More rows do not fit its registers.
constexpr uint32_t exl3_many_rows(Exl3Lanes form) { return form == Exl3Lanes::kMmaSync ? 96 : 32; }
/// Tiles with fewer rows have code of their own for each so many.
inline constexpr uint32_t kExl3ManyPart = 32;
constexpr uint32_t exl3_many_threads(Exl3Lanes form) {
  return kExl3Block / exl3_shape(form).outputs * device::kMatrixLanes;
}
/// 128 inputs of a block's rows and weights, so many times under way.
constexpr uint32_t exl3_many_stages(Exl3Lanes form) { return form == Exl3Lanes::kMmaSync ? 2 : 3; }
constexpr uint32_t exl3_many_stage_bytes(Exl3Lanes form) {
  return kExl3Block * exl3_many_rows(form) * 2;
}
/// A row of 128 sums before their transform, so that rows do not meet in a bank: bytes.
inline constexpr uint32_t kExl3ManyRowBytes = (kExl3Block + 4) * 4;
constexpr uint32_t exl3_many_shared(Exl3Lanes form, uint32_t units) {
  const uint32_t loop =
      exl3_many_stages(form) * exl3_many_stage_bytes(form) +
      kExl3Block / exl3_shape(form).outputs * exl3_ring_bytes(form, units, exl3_many_stages(form));
  const uint32_t end = exl3_many_rows(form) * kExl3ManyRowBytes;
  return loop > end ? loop : end;
}
/// Tiles of rows, at most: every run that has rows begins one.
constexpr uint32_t exl3_many_tiles(Exl3Lanes form, uint32_t rows, uint32_t experts) {
  const uint32_t tile = exl3_many_rows(form);
  return experts == 0 ? (rows + tile - 1) / tile : rows / tile + (rows < experts ? rows : experts);
}

/// exl3_gather: grid (rows, blocks of 128 of k), a thread an element.
inline constexpr uint32_t kExl3GatherThreads = kExl3Block;
inline constexpr uint32_t kExl3GatherShared = kExl3Block * 4;

}  // namespace atlas::kernels
