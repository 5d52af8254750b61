// Products of many rows with packed weights by wgmma, which h200 has alone: their input encoding,
// sizes, shared memory and grids, which a record and a kernel must agree on. Contracts, bits and
// resident layouts are those of gpu_products.h and the formats.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/gpu_products.h"

namespace atlas::kernels {

/// A block stays for the whole launch and takes tiles of 128 outputs by so many rows at most, all
/// of k. Eight warps multiply, each a group of 16 outputs; four bring rows and weights.
inline constexpr uint32_t kWgmmaGroups = 8;
inline constexpr uint32_t kWgmmaRows = 160;
inline constexpr uint32_t kWgmmaBringers = 4;
inline constexpr uint32_t kWgmmaThreads = (kWgmmaGroups + kWgmmaBringers) * device::kMatrixLanes;
static_assert(2 * kWgmmaStage == device::kWgmmaRowBytes);

/// Input encoding "bf16_w64": the numbers of "bf16_b32" as shared memory has to hold them for the
/// instruction, k rounded up to a multiple of 64, without sums. 32 rows stand together, from one
/// whose number is a multiple of 32 on, so that a tile's rows are few copies; memory for rows is
/// that of a multiple of 32. Of each 64 of k follow 128 bytes of each of the 32, swizzled
/// (device::wgmma_swizzled).
inline constexpr char kWgmmaEncoding[] = "bf16_w64";
inline constexpr char kEncodeWgmma[] = "encode_bf16_w64";  // the kernel
inline constexpr uint32_t kWgmmaRowGroup = 32;
inline constexpr uint32_t kWgmmaSwizzled = 8;  // rows until the swizzle's order comes again
constexpr uint64_t wgmma_row_bytes(uint64_t k) {
  return whole_units(k, kWgmmaStage) * device::kWgmmaRowBytes;
}
/// Rows that memory for `rows` is for.
constexpr uint32_t wgmma_places(uint32_t rows) {
  return (rows + kWgmmaRowGroup - 1) / kWgmmaRowGroup * kWgmmaRowGroup;
}
/// Experts' rows are brought into the order of their runs before their product, each run from a
/// multiple of 8 on: the first place of an expert's, whose rows begin at `offset` of all. No two
/// runs meet, as each takes less than 8 places more than it has rows.
constexpr uint32_t wgmma_run_place(uint32_t offset, uint32_t expert) {
  return (offset + 7 * expert) / kWgmmaSwizzled * kWgmmaSwizzled;
}
constexpr uint64_t wgmma_runs_bytes(uint64_t k, uint32_t rows, uint32_t experts) {
  return whole_units(rows + uint64_t{7} * experts, kWgmmaRowGroup) * kWgmmaRowGroup *
         wgmma_row_bytes(k);
}
inline constexpr char kRunsWgmma[] = "runs_bf16_w64";  // the kernel

/// Where element `k` of a row stands in its 128 bytes before they are swizzled. Of 16 elements an
/// instruction takes two of each four as its first eight and the other two as its last: a lane's
/// four elements of the weights (word_element) are those that it must hold, so that these need no
/// exchange.
constexpr uint32_t wgmma_place(uint32_t k) {
  const uint32_t in_stage = k % kWgmmaStage, step = in_stage / 16, t = in_stage % 16 / 4;
  return 32 * step + 16 * (k % 4 / 2) + 4 * t + 2 * (k % 2);
}
/// Where element `k` of row `row` stands, in bytes.
constexpr uint64_t wgmma_encoded_offset(uint64_t row_bytes, uint64_t row, uint32_t k) {
  const auto in_group = static_cast<uint32_t>(row % kWgmmaRowGroup);
  return (row - in_group) * row_bytes +
         uint64_t{k / kWgmmaStage} * (kWgmmaRowGroup * device::kWgmmaRowBytes) +
         device::wgmma_swizzled(in_group * device::kWgmmaRowBytes + wgmma_place(k));
}

/// The kernel that orders: blocks of an expert, whose warps take its rows in turn.
inline constexpr uint32_t kWgmmaRunsParts = 8;
constexpr ProductLaunch wgmma_runs_launch(uint32_t experts) {
  ProductLaunch launch;
  launch.x = experts;
  launch.y = kWgmmaRunsParts;
  launch.threads = kEncodeThreads;
  return launch;
}

/// The kernel that encodes: threads of a block have four elements each of so many rows.
inline constexpr uint32_t kWgmmaEncodeRows = 4;
constexpr ProductLaunch wgmma_encode_launch(uint64_t k, uint32_t max_rows) {
  ProductLaunch launch;
  launch.x = whole_units(max_rows, kWgmmaEncodeRows);
  launch.y = whole_units(whole_units(k, kWgmmaStage) * (kWgmmaStage / 4), kEncodeThreads);
  launch.threads = kEncodeThreads;
  launch.wgmma = true;
  return launch;
}

/// Shared memory of one stage and of all. `group_bytes`: of 64 elements of a group of 16 outputs.
inline constexpr uint32_t kWgmmaRowsBytes = kWgmmaRows * device::kWgmmaRowBytes;
/// What a stage is of: four words.
inline constexpr uint32_t kWgmmaTileBytes = 16;
constexpr uint32_t wgmma_stage_bytes(uint32_t group_bytes) {
  return kWgmmaRowsBytes + kWgmmaGroups * group_bytes + kWgmmaTileBytes + 16;  // two barriers
}
inline constexpr uint32_t kWgmmaSharedBytes = 226 * 1024;
constexpr uint32_t wgmma_stages(uint32_t group_bytes) {
  return std::min(8u, (kWgmmaSharedBytes - 1024) / wgmma_stage_bytes(group_bytes));
}
/// Rows stand at a multiple of 1,024 bytes.
constexpr uint32_t wgmma_shared_bytes(uint32_t group_bytes) {
  return 1024 + wgmma_stages(group_bytes) * wgmma_stage_bytes(group_bytes);
}

// ---- Launches

/// Multiprocessors of an H200, each of which has room for one block.
inline constexpr uint32_t kWgmmaBlocks = 132;

/// Rows and groups of 16 outputs of a tile.
struct WgmmaTileSize {
  uint32_t rows, groups;
};
/// As the parameters have it: rows and kWgmmaTileSizes * groups.
inline constexpr uint32_t kWgmmaTileSizes = 65536;

/// The size with which a dense product is done first, by a count of cycles for 64 of k: matrix
/// instructions take 4 a row; a stage's waits 400 at least; its bytes come at 47 a
/// cycle if one multiprocessor asks, at 28 if all do. The last three are guesses. The tile's end
/// takes as long as 100 cycles each of 40 stages. `group_bytes`: of 64 elements of a group.
constexpr WgmmaTileSize wgmma_tile_size(uint64_t n, uint32_t max_rows, uint32_t group_bytes) {
  constexpr WgmmaTileSize kSizes[] = {{160, 8}, {128, 8}, {96, 8}, {64, 8},
                                      {160, 4}, {128, 4}, {96, 4}, {64, 4}};
  uint64_t least = ~uint64_t{0};
  WgmmaTileSize best{};
  for (const WgmmaTileSize& size : kSizes) {
    const uint64_t tiles = whole_units(max_rows, size.rows) * whole_units(tiles_of(n), size.groups);
    const uint64_t busy = std::min<uint64_t>(tiles, kWgmmaBlocks);
    const uint64_t bytes = std::min(size.rows, max_rows) * device::kWgmmaRowBytes +
                           uint64_t{size.groups} * group_bytes;
    const uint64_t rate = std::min<uint64_t>(47, 28 * kWgmmaBlocks / busy);
    const uint64_t cycles = std::max({uint64_t{4} * size.rows, uint64_t{400}, bytes / rate});
    const uint64_t time = whole_units(tiles, kWgmmaBlocks) * (cycles + 100);
    if (time >= least) continue;
    least = time;
    best = size;
  }
  return best;
}

/// Rows of an expert are divided evenly over as few tiles as there can be.
constexpr uint32_t wgmma_expert_rows(uint32_t rows) {
  if (rows <= kWgmmaRows) return kWgmmaRows;
  const uint32_t tiles = (rows + kWgmmaRows - 1) / kWgmmaRows;
  return ((rows + tiles - 1) / tiles + 7) / 8 * 8;
}

constexpr ProductLaunch wgmma_launch(uint64_t row_tiles, uint64_t n, WgmmaTileSize size,
                                     uint32_t group_bytes) {
  ProductLaunch launch;
  launch.x = std::min<uint64_t>(row_tiles * whole_units(tiles_of(n), size.groups), kWgmmaBlocks);
  launch.threads = kWgmmaThreads;
  launch.shared_bytes = wgmma_shared_bytes(group_bytes);
  launch.tiles = size.rows + kWgmmaTileSizes * size.groups;
  launch.wgmma = true;
  return launch;
}
constexpr ProductLaunch linear_wgmma_launch(uint64_t n, uint32_t max_rows, uint32_t group_bytes) {
  const WgmmaTileSize size = wgmma_tile_size(n, max_rows, group_bytes);
  return wgmma_launch(whole_units(max_rows, size.rows), n, size, group_bytes);
}
/// Every expert that has rows begins a tile.
constexpr ProductLaunch grouped_wgmma_launch(uint64_t n, uint32_t experts, uint32_t max_rows,
                                             uint32_t group_bytes) {
  return wgmma_launch(max_rows / (kWgmmaRows / 2) + std::min(max_rows, experts), n,
                      {0, kWgmmaGroups}, group_bytes);
}

/// Whether a platform's products of so many rows take the kernels of wgmma, if the format has them.
constexpr bool takes_wgmma(std::string_view platform, uint64_t n, uint64_t k, uint32_t max_rows) {
  return max_rows > tuned(platform, Choice::kLinearWgmma, n, k);
}
constexpr bool takes_wgmma_grouped(std::string_view platform, uint64_t n, uint64_t k,
                                   uint32_t experts, uint32_t max_rows) {
  const uint64_t above = tuned(platform, Choice::kExpertsWgmma, n, k);
  return above <= max_rows && max_rows > above * experts;
}

}  // namespace atlas::kernels
