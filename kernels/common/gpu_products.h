// Products with packed weights on GPUs: block sizes, shared memory and grids, which a record and a
// kernel must agree on, and which kernel does which rows. Nothing here changes a result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "kernels/common/gpu_weights.h"
#include "kernels/common/linear.h"
#include "kernels/common/tuning.h"

namespace atlas::kernels {

inline constexpr uint32_t kProductWarps = 8;
inline constexpr uint32_t kProductThreads = kProductWarps * device::kMatrixLanes;
/// Warps of a dense product for few rows: all that a unit's registers allow, so that matrices of
/// few outputs, which have few blocks, keep enough loads under way. A fragment of WMMA takes twice
/// the registers.
constexpr uint32_t few_warps(MatrixFamily family) {
  return family == MatrixFamily::kMma ? 16 : kProductWarps;
}
/// Shared memory of every product begins with this, for finding an expert's rows.
inline constexpr uint32_t kProductSharedHead = 64;

/// Few rows: 16 at most a block, and tasks (a run of k of a group of 16 outputs) whose values stand
/// in shared memory together.
inline constexpr uint32_t kFewRows = 16;
inline constexpr uint32_t kFewTasks = 48;
inline constexpr uint32_t kFewTiles = 4;  // groups of outputs of a block, at most
constexpr uint32_t few_cells(uint32_t warps) {
  return kFewTiles * kTileOutputs * kFewRows / (warps * device::kMatrixLanes);
}

/// Many rows: 128 a block, two halves of 64 (with WMMA, whose weights need twice the registers,
/// half as many); shared memory has stages of 64 elements along k, and behind them the sums of two
/// blocks of 32.
constexpr uint32_t many_rows_of(MatrixFamily family) {
  return family == MatrixFamily::kMma ? 128 : 64;
}
inline constexpr uint32_t kManyStage = 64;
inline constexpr uint32_t kManyStages = 3;
inline constexpr uint32_t kManyRowBytes = 2 * kManyStage;
constexpr uint32_t many_stage_bytes(MatrixFamily family) {
  return many_rows_of(family) * (kManyRowBytes + 8);
}
constexpr uint32_t many_shared_bytes(MatrixFamily family) {
  return kProductSharedHead + kManyStages * many_stage_bytes(family);
}

/// Groups of outputs of a warp of the kernel for many rows. `wide`: a format with so many registers
/// a unit that there is no room for two.
constexpr uint32_t many_tiles(MatrixFamily family, bool wide) {
  return family == MatrixFamily::kMma && !wide ? 2 : 1;
}

constexpr uint32_t tiles_of(uint64_t count) {
  return static_cast<uint32_t>((count + kTileOutputs - 1) / kTileOutputs);
}

/// `rows` bounds the rows of a block. Columns of an instruction that has no rows take no memory.
constexpr uint32_t few_shared_bytes(MatrixFamily family, uint32_t rows) {
  const uint32_t columns = family == MatrixFamily::kMma && rows <= 8 ? 8 : kFewRows;
  return kProductSharedHead +
         kFewTasks * kTileOutputs * columns * static_cast<uint32_t>(sizeof(float));
}

/// Gathers and encodings: a block of this many threads does a row, or a part of it.
inline constexpr uint32_t kEncodeThreads = 128;
inline constexpr uint32_t kGatherThreads = 128;
/// Pieces of eight elements of a row, a thread each: blocks in y.
constexpr uint32_t encode_parts(uint64_t k) {
  return static_cast<uint32_t>(whole_units(encoded_elements(k) / 8, kEncodeThreads));
}

// ---- What a platform wants

struct GpuTraits {
  std::string_view platform;
  MatrixFamily family;
  uint32_t units;  // streaming multiprocessors, or compute units
};
inline constexpr GpuTraits kGpuTraits[] = {{"h200", MatrixFamily::kMma, 132},
                                           {"gb10", MatrixFamily::kMma, 48},
                                           {"strix-hip", MatrixFamily::kWmma, 40}};
constexpr const GpuTraits* gpu_traits(std::string_view platform) {
  for (const GpuTraits& traits : kGpuTraits) {
    if (traits.platform == platform) return &traits;
  }
  return nullptr;
}

/// Groups of outputs of a block for few rows: as many as leave every unit its blocks of `warps`
/// (16 warps of a unit together), so that rows of x are read seldom; at least so many that every
/// warp has a task where k is short. `matrices`: as many products run in one launch (experts).
constexpr uint32_t few_tiles(const GpuTraits& gpu, uint32_t warps, uint64_t n, uint64_t k,
                             uint64_t matrices) {
  const uint64_t all = uint64_t{tiles_of(n)} * matrices;
  const uint64_t runs = whole_units(k, kBf16Run);
  uint32_t tiles = 1;
  while (tiles < kFewTiles &&
         all / (2 * tiles) >= (runs * tiles < warps ? gpu.units / 2 : gpu.units * 16 / warps)) {
    tiles *= 2;
  }
  return tiles;
}

/// Whether products of a bucket of so many rows run the kernel for many: as the platform's
/// tuning.yaml says.
constexpr bool takes_many(std::string_view platform, uint64_t n, uint64_t k, uint32_t max_rows) {
  return max_rows > tuned(platform, Choice::kLinearMany, n, k);
}
constexpr bool takes_many_grouped(std::string_view platform, uint64_t n, uint64_t k,
                                  uint32_t experts, uint32_t max_rows) {
  const uint64_t above = tuned(platform, Choice::kExpertsMany, n, k);
  return above <= max_rows && max_rows > above * experts;
}
static_assert(takes_many_grouped("h200", 640, 2560, 1, 0xffffffffu) &&
              !takes_many_grouped("h200", 640, 2560, 0xffffffffu, 0xffffffffu));

// ---- Launches

struct ProductLaunch {
  uint64_t x = 1, y = 1;  // blocks
  uint32_t threads = kProductThreads;
  uint32_t shared_bytes = 0;
  uint32_t tiles = 0;  // of the parameters
  bool many = false;   // takes the kernel for many rows
};

constexpr ProductLaunch linear_launch(const GpuTraits& gpu, bool many, bool wide, uint64_t n,
                                      uint64_t k, uint32_t max_rows) {
  if (many) {
    return {whole_units(tiles_of(n), 4 * many_tiles(gpu.family, wide)),
            whole_units(max_rows, many_rows_of(gpu.family)),
            kProductThreads,
            many_shared_bytes(gpu.family),
            0,
            true};
  }
  const uint32_t tiles = few_tiles(gpu, few_warps(gpu.family), n, k, 1);
  return {whole_units(tiles_of(n), tiles),
          whole_units(max_rows, kFewRows),
          few_warps(gpu.family) * device::kMatrixLanes,
          few_shared_bytes(gpu.family, max_rows),
          tiles,
          false};
}

/// Blocks take the items (rows of an expert by some outputs) in turn: as many blocks as there can
/// be items, but for many rows two a unit.
constexpr ProductLaunch grouped_launch(const GpuTraits& gpu, bool many, bool wide, uint64_t n,
                                       uint64_t k, uint32_t experts, uint32_t max_rows) {
  const uint32_t busy = std::min(max_rows, experts);
  ProductLaunch launch;
  launch.many = many;
  launch.tiles =
      many ? 4 * many_tiles(gpu.family, wide) : few_tiles(gpu, kProductWarps, n, k, busy);
  const uint64_t chunks = busy + max_rows / (many ? many_rows_of(gpu.family) : kFewRows);
  const uint64_t items = chunks * whole_units(tiles_of(n), launch.tiles);
  launch.x = std::min<uint64_t>(items, gpu.units * (many ? 2 : 16));
  launch.shared_bytes =
      many ? many_shared_bytes(gpu.family) : few_shared_bytes(gpu.family, max_rows);
  return launch;
}

constexpr ProductLaunch encode_launch(uint64_t k, uint32_t max_rows) {
  return {max_rows, encode_parts(k), kEncodeThreads, 0, 0};
}
constexpr ProductLaunch gather_launch(uint32_t max_rows) {
  return {max_rows, 1, kGatherThreads, 0, 0};
}

}  // namespace atlas::kernels
