// EXL3 by wgmma, which h200 has alone: encoded rows in that instruction's order, sizes and grids.
// The contract, its bits and the resident layout of weights are those of exl3_gpu.h.
#pragma once

#include "kernels/common/exl3_gpu.h"

namespace atlas::kernels {

// ---- Encoded rows ----

/// Each 128 of k of all rows stand together, there groups of eight rows, 1,024 bytes for each 64 of
/// k: what shared memory has to hold for the instruction, so that a tile's rows are copied as they
/// are. Each run of rows begins a group; its last one is filled with zeros. The first place of an
/// expert's run, whose rows begin at `offset` of all rows: no two runs meet, as each takes less
/// than 8 places more.
constexpr uint32_t exl3_wgmma_place(uint32_t offset, uint32_t expert) {
  return (offset + 7 * expert) / 8 * 8;
}
/// Places of `rows` rows of so many experts (0: they are one run).
constexpr uint64_t exl3_wgmma_places(uint64_t rows, uint64_t experts) {
  return (rows + 7 * (experts == 0 ? 1 : experts)) / 8 * 8;
}
/// Where element `k` of the row at `place` stands, of so many places: bytes. Each 64 of k are four
/// instructions in the order of their 16 elements: an element is in the place of the very
/// instruction in which exl3_encoded_offset has it. An even one and the next stand together.
constexpr uint64_t exl3_wgmma_offset(uint64_t places, uint64_t place, uint64_t k) {
  const auto in_step = static_cast<uint32_t>(k % 64), row = static_cast<uint32_t>(place % 8);
  const uint32_t tile = in_step / kExl3Tile, element = in_step % kExl3Tile;
  const uint32_t at = 16 * (element % 8 / 2) + element / 8 * 8 + 2 * tile + element % 2;
  return (k / kExl3Block * places + place / 8 * 8) * (2 * kExl3Block) + k % kExl3Block / 64 * 1024 +
         device::wgmma_swizzled(row * device::kWgmmaRowBytes + 2 * at);
}

/// exl3_encode_wgmma: grid (exl3_encode_blocks(rows), segments), and parts with few rows; with many
/// a block does all parts. Then two rows of a warp change lanes in shared memory: so many floats a
/// lane, 32 and four for which lanes do not meet in a bank.
inline constexpr uint32_t kExl3StagedLane = 36;
inline constexpr uint32_t kExl3EncodeWgmmaShared = kExl3EncodeThreads * kExl3StagedLane * 4;

// ---- Products ----

/// exl3_wgmma_<codebook>: grid (blocks); each takes one tile after another of 128 outputs by up to
/// 128 rows. Eight warps multiply, each a group of outputs, and one brings rows and weights.
inline constexpr uint32_t kExl3WgmmaRows = 128;
inline constexpr uint32_t kExl3WgmmaWarps = kExl3Block / exl3_shape(Exl3Lanes::kMmaSync).outputs;
inline constexpr uint32_t kExl3WgmmaThreads =
    (kExl3WgmmaWarps + device::kWgmmaWarps) * device::kMatrixLanes;
/// Rows whose sums are transformed at a time.
inline constexpr uint32_t kExl3WgmmaOutputRows = 64;

/// 128 inputs of a block's rows and weights and the rows' powers, so many times under way or in
/// use.
constexpr uint32_t exl3_wgmma_stages(uint32_t units) { return units > 14 ? 3 : 4; }
inline constexpr uint32_t kExl3WgmmaRowBytes = kExl3WgmmaRows * kExl3Block * 2;
constexpr uint32_t exl3_wgmma_weight_bytes(uint32_t units) {
  return kExl3WgmmaWarps * exl3_pair_bytes(Exl3Lanes::kMmaSync, units);
}
inline constexpr uint32_t kExl3WgmmaPowerBytes = kExl3WgmmaRows * 4;
/// What a stage is of: four words.
inline constexpr uint32_t kExl3WgmmaTileBytes = 16;
/// Where the parts begin, rows of stages at a multiple of 1,024 bytes.
struct Exl3WgmmaShared {
  uint32_t weights, powers, tiles, barriers, outputs, bytes;
};
constexpr Exl3WgmmaShared exl3_wgmma_layout(uint32_t units) {
  const uint32_t stages = exl3_wgmma_stages(units);
  Exl3WgmmaShared at{};
  at.weights = stages * kExl3WgmmaRowBytes;
  at.powers = at.weights + stages * exl3_wgmma_weight_bytes(units);
  at.tiles = at.powers + stages * kExl3WgmmaPowerBytes;
  at.barriers = at.tiles + stages * kExl3WgmmaTileBytes;
  at.outputs = at.barriers + ((2 * stages + 2) * 8 + 127) / 128 * 128;
  at.bytes = at.outputs + kExl3WgmmaOutputRows * kExl3ManyRowBytes;
  return at;
}
constexpr uint32_t exl3_wgmma_shared(uint32_t units) {
  return 1024 + exl3_wgmma_layout(units).bytes;
}

/// Multiprocessors of an H200, each of which has room for one block.
inline constexpr uint32_t kExl3WgmmaBlocks = 132;
/// Tiles of rows, at most: every run that has rows begins one.
constexpr uint32_t exl3_wgmma_tiles(uint32_t rows, uint32_t experts) {
  return experts == 0 ? (rows + kExl3WgmmaRows - 1) / kExl3WgmmaRows
                      : rows / kExl3WgmmaRows + (rows < experts ? rows : experts);
}
constexpr uint32_t exl3_wgmma_blocks(uint32_t n, uint32_t rows, uint32_t experts) {
  const uint64_t tiles = uint64_t{n / kExl3Block} * exl3_wgmma_tiles(rows, experts);
  return tiles < kExl3WgmmaBlocks ? static_cast<uint32_t>(tiles) : kExl3WgmmaBlocks;
}

}  // namespace atlas::kernels
