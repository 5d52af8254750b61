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
/// Shared memory of every product begins with this, for finding an expert's rows and for saying who
/// is last.
inline constexpr uint32_t kProductSharedHead = 64;

/// Few rows: 16 at most a block.
inline constexpr uint32_t kFewRows = 16;
/// Tasks (a run of k of a group of 16 outputs) whose values stand in shared memory together.
constexpr uint32_t few_tasks(uint32_t warps) { return 2 * warps; }
/// Groups of a block whose results' scales are brought to shared memory.
inline constexpr uint32_t kFewScaled = 32;
/// Shared memory: the head, two times the totals of a group that are not complete, scales, a ring
/// of weights for each warp, values.
inline constexpr uint32_t kFewWaitingAt = kProductSharedHead;
inline constexpr uint32_t kFewScalesAt =
    kFewWaitingAt + 2 * kFewRows * kTileOutputs * static_cast<uint32_t>(sizeof(float));
inline constexpr uint32_t kFewRingAt =
    kFewScalesAt + kFewScaled * kTileOutputs * static_cast<uint32_t>(sizeof(float));
/// Units whose activations are loaded together, of the `ahead` that a warp has under way: as many
/// as take four loads of 16 bytes. `loads`: of a unit.
constexpr uint32_t few_input_units(uint32_t ahead, uint32_t loads) {
  const uint32_t units = loads >= 4 ? 1 : 4 / loads;
  return units < ahead ? units : ahead;
}
/// The largest power of two that is no more than `x`.
constexpr uint32_t few_power(uint32_t x) { return x < 2 ? 1 : 2 * few_power(x / 2); }

/// Many rows: 128 a block (with WMMA, whose weights need twice the registers, half as many), by
/// eight groups of outputs; k goes by in stages of 64 elements.
constexpr uint32_t many_rows_of(MatrixFamily family) {
  return family == MatrixFamily::kMma ? 128 : 64;
}
inline constexpr uint32_t kManyGroups = 8;
inline constexpr uint32_t kManyStage = 64;
inline constexpr uint32_t kManyRowBytes = 2 * kManyStage;
/// Tiles of rows of a dense product that share a sweep over the outputs.
inline constexpr uint32_t kManyBand = 8;
/// Behind the head: as many stages of rows and weights as a block of gb10 may have; or two of rows
/// with the sums of their blocks of 32.
constexpr uint32_t many_shared_bytes(MatrixFamily family) {
  if (family == MatrixFamily::kMma) return 99 * 1024;
  return kProductSharedHead + 2 * many_rows_of(family) * (kManyRowBytes + 8);
}

/// Groups of outputs of a warp of the kernel for many rows. `wide`: a format with so many registers
/// a unit, or so much to decode, that a warp has one, for all rows.
constexpr uint32_t many_tiles(MatrixFamily family, bool wide) {
  return family == MatrixFamily::kMma && !wide ? 2 : 1;
}

constexpr uint32_t tiles_of(uint64_t count) {
  return static_cast<uint32_t>((count + kTileOutputs - 1) / kTileOutputs);
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
  /// Bytes a nanosecond: of the memory, and of what one unit can read of it (taken to be so, not
  /// measured).
  uint32_t memory_rate, unit_rate;
  /// Shared memory that a warp of the kernels for few rows has for weights under way. 16 warps of a
  /// unit cover its memory's latency with a third of that; a run of 256 bf16 weights, which is the
  /// whole work of a warp where products are small, takes 8 KiB. 0: weights come by registers.
  uint32_t ring_bytes;
  /// Shared memory of a unit, where launches that begin early are spread by it (spread_shared), of
  /// which every block takes 1 KiB beside its own. 0: they are not, as nobody has measured it.
  uint32_t unit_shared;
};
inline constexpr GpuTraits kGpuTraits[] = {
    {"h200", MatrixFamily::kMma, 132, 4500, 80, 8192, 228 * 1024},
    {"gb10", MatrixFamily::kMma, 48, 240, 50, 3072, 0},
    {"strix-hip", MatrixFamily::kWmma, 40, 215, 30, 0, 0}};
constexpr const GpuTraits* gpu_traits(std::string_view platform) {
  for (const GpuTraits& traits : kGpuTraits) {
    if (traits.platform == platform) return &traits;
  }
  return nullptr;
}

/// Shared memory that lets a unit have no more blocks of a launch than its even share; 0: no such
/// limit. Blocks that begin while the launch before them runs gather where there is room first, and
/// the launch then takes as long as the fullest unit (EXL3, 6,144 to 2,560, 480 blocks: 12.4 us
/// without, 10.4 with it). Of very few blocks a limit would keep other launches out, very many come
/// in turns.
constexpr uint32_t spread_shared(const GpuTraits& gpu, uint64_t blocks) {
  constexpr uint64_t kLeast = 3, kMost = 8, kOfBlock = 1024;
  const uint64_t share = whole_units(blocks, gpu.units);
  if (gpu.unit_shared == 0 || share < kLeast || share > kMost) return 0;
  return static_cast<uint32_t>(gpu.unit_shared / share - kOfBlock) / 128 * 128;
}

/// `rows` bounds the rows of a block.
constexpr uint32_t few_shared_bytes(const GpuTraits& gpu, uint32_t warps, uint32_t rows) {
  return kFewRingAt + warps * gpu.ring_bytes +
         few_tasks(warps) * kTileOutputs * std::min(rows, kFewRows) *
             static_cast<uint32_t>(sizeof(float));
}

/// Blocks of `warps` that the device has room for at a time: 16 warps of a unit together.
constexpr uint32_t few_slots(const GpuTraits& gpu, uint32_t warps) {
  return gpu.units * 16 / warps;
}

/// Groups of outputs of a block of a dense product for few rows: as few as let all blocks be there
/// at once, since a block that ends leaves nothing under way until another's weights come.
constexpr uint32_t few_tiles(const GpuTraits& gpu, uint64_t n) {
  return static_cast<uint32_t>(whole_units(tiles_of(n), few_slots(gpu, few_warps(gpu.family))));
}

/// What it takes to leave values in memory, to count the block and to read them again, in
/// nanoseconds: three round trips to the second-level cache.
inline constexpr uint64_t kFewDetour = 1300;

/// Parts of k of a dense product for few rows, a block each. It takes as long as the memory needs
/// for all, or a unit for its block's share, whichever is more; parts make that share smaller and
/// cost the detour. `group_bytes`: of 16 outputs.
constexpr uint32_t few_parts(const GpuTraits& gpu, uint64_t n, uint64_t k, uint64_t group_bytes) {
  const uint64_t groups = tiles_of(n), runs = whole_units(k, kBf16Run);
  const uint64_t slots = few_slots(gpu, few_warps(gpu.family));
  constexpr uint64_t kLeastRuns = 4;
  const uint64_t parts = std::min(slots / groups, runs / kLeastRuns);
  if (parts < 2) return 1;
  const uint64_t all = groups * group_bytes / gpu.memory_rate;
  const uint64_t whole = std::max(all, group_bytes / gpu.unit_rate);
  const uint64_t divided = std::max(all, group_bytes / parts / gpu.unit_rate) + kFewDetour;
  return divided < whole ? static_cast<uint32_t>(parts) : 1;
}

/// Parts into which the groups of an expert are cut, a block each, if `busy` experts have rows: so
/// many that one block of each fills the device once; or four times, where that is uneven.
constexpr uint32_t grouped_parts(const GpuTraits& gpu, uint64_t n, uint64_t busy) {
  const uint64_t slots = few_slots(gpu, kProductWarps), groups = tiles_of(n);
  const uint64_t once = slots / busy;
  return static_cast<uint32_t>(
      std::min(groups, once >= 2 ? once : whole_units(4 * slots, static_cast<uint32_t>(busy))));
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
  uint32_t tiles = 0;   // of the parameters
  bool many = false;    // takes the kernel for many rows
  bool by_row = false;  // experts: of the parameters
  bool wgmma = false;   // takes the kernel of wgmma (gpu_wgmma.h)
  uint32_t z = 1;       // blocks: parts of k
  uint64_t workspace_bytes = 0;
};

/// Cuts k into `parts`, with the workspace that this needs.
constexpr ProductLaunch divided(ProductLaunch launch, uint32_t parts, uint64_t n, uint64_t k,
                                uint32_t max_rows) {
  launch.z = parts;
  if (parts > 1) {
    launch.workspace_bytes =
        tiles_of(n) * whole_units(k, kBf16Run) * max_rows * kTileOutputs * sizeof(float);
  }
  return launch;
}

/// `divided_bytes`: of a group of 16 outputs of a format whose k may be divided; else 0.
constexpr ProductLaunch linear_launch(const GpuTraits& gpu, bool many, uint64_t n, uint64_t k,
                                      uint32_t max_rows, uint64_t divided_bytes = 0) {
  if (many) {
    return {whole_units(tiles_of(n), kManyGroups),
            whole_units(max_rows, many_rows_of(gpu.family)),
            kProductThreads,
            many_shared_bytes(gpu.family),
            0,
            true};
  }
  const uint32_t tiles = few_tiles(gpu, n), warps = few_warps(gpu.family);
  const ProductLaunch launch{whole_units(tiles_of(n), tiles), whole_units(max_rows, kFewRows),
                             warps * device::kMatrixLanes, few_shared_bytes(gpu, warps, max_rows),
                             tiles};
  // A counter serves one block of rows.
  if (divided_bytes == 0 || max_rows > kFewRows) return launch;
  return divided(launch, few_parts(gpu, n, k, divided_bytes), n, k, max_rows);
}

/// Blocks take the items (rows of an expert by some outputs) in turn: as many blocks as there can
/// be items, but for many rows two a unit. Where rows are no more than experts, an item is a row by
/// some outputs, a block each, and rows that another's block does leave theirs without work.
constexpr ProductLaunch grouped_launch(const GpuTraits& gpu, bool many, uint64_t n, uint64_t k,
                                       uint32_t experts, uint32_t max_rows) {
  static_cast<void>(k);
  const uint32_t busy = std::min(max_rows, experts);
  ProductLaunch launch;
  launch.many = many;
  if (many) {
    launch.tiles = kManyGroups;
    launch.shared_bytes = many_shared_bytes(gpu.family);
  } else {
    launch.tiles = static_cast<uint32_t>(whole_units(tiles_of(n), grouped_parts(gpu, n, busy)));
    launch.shared_bytes = few_shared_bytes(gpu, kProductWarps, max_rows);
    launch.by_row = max_rows <= experts;
  }
  const uint64_t parts = whole_units(tiles_of(n), launch.tiles);
  const uint64_t chunks = busy + max_rows / (many ? many_rows_of(gpu.family) : kFewRows);
  launch.x = launch.by_row ? max_rows * parts
                           : std::min<uint64_t>(chunks * parts, gpu.units * (many ? 2 : 16));
  return launch;
}

constexpr ProductLaunch encode_launch(uint64_t k, uint32_t max_rows) {
  return {max_rows, encode_parts(k), kEncodeThreads, 0, 0};
}
constexpr ProductLaunch gather_launch(uint32_t max_rows) {
  return {max_rows, 1, kGatherThreads, 0, 0};
}

}  // namespace atlas::kernels
