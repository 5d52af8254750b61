// Products of many rows for every GPU pack: exl3_many_<codebook>, from encoded rows. A block does
// 128 outputs of 96 rows (WMMA: 32) over all of k: a warp decodes a group's weights once for all of
// them, rows come by way of shared memory. A tile of at most 32 or 64 rows has code of its own:
// conditions between matrix instructions cost half of their speed. Sums are folded at the ends of
// segments, so bits are those of exl3_few.
#pragma once

#include "kernels/common/gpu/exl3_rows.h"

namespace atlas::kernels {

inline constexpr uint32_t kExl3ManyRows = exl3_many_rows(kExl3Lanes);
inline constexpr uint32_t kExl3ManyThreads = exl3_many_threads(kExl3Lanes);
inline constexpr uint32_t kExl3ManyWarps = kExl3ManyThreads / device::kMatrixLanes;
inline constexpr uint32_t kExl3ManyStages = exl3_many_stages(kExl3Lanes);

/// Rows [begin, begin + rows) of a run: a tile of them.
struct Exl3Tile {
  uint32_t begin = 0, rows = 0, expert = 0;
};

/// Tile `index` of all runs' tiles of kRows, in the order of experts; without rows if there are
/// fewer. All lanes of the warp take part.
template <uint32_t kRows, uint32_t kAtOnce = 16>
ATLAS_DEVICE Exl3Tile exl3_tile(const uint32_t* row_count, const uint32_t* offsets,
                                uint32_t experts, uint32_t index) {
  using namespace device;
  uint32_t begin = 0, end = 0, expert = 0, tile = index;
  if (offsets == nullptr) {
    end = load(row_count);
  } else {
    // A lane counts the tiles of its experts; the lane in whose count the index falls finds it.
    const uint32_t each = (experts + kWarpLanes - 1) / kWarpLanes;
    const uint32_t from = lane_index() * each < experts ? lane_index() * each : experts;
    const uint32_t to = from + each < experts ? from + each : experts;
    // Calls use(expert, tiles) for each of them, whose offsets are asked for kAtOnce at a time.
    const auto each_expert = [&](const auto& use) {
      uint32_t before = load(offsets + from);
      for (uint32_t first = from; first < to; first += kAtOnce) {
        uint32_t ends[kAtOnce];
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          ends[i] = load(offsets + (first + i < to ? first + i + 1 : to));
        }
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          use(first + i, (ends[i] - before + kRows - 1) / kRows);
          before = ends[i];
        }
      }
    };
    uint32_t count = 0;
    each_expert([&](uint32_t, uint32_t tiles) { count += tiles; });
    uint32_t through = count;
    ATLAS_UNROLL
    for (uint32_t distance = 1; distance < kWarpLanes; distance *= 2) {
      const uint32_t below = shuffle_up(through, distance);
      if (lane_index() >= distance) through += below;
    }
    const uint32_t past = ballot(through > index);
    if (past == 0) return {};
    const uint32_t owner = lowest_bit(past);
    uint32_t left = index - (through - count), found = from;
    if (lane_index() == owner) {
      bool passed = false;
      each_expert([&](uint32_t e, uint32_t tiles) {
        passed = passed || left < tiles;
        if (passed) return;
        left -= tiles;
        found = e + 1;
      });
    }
    expert = shuffle(found, owner);
    tile = shuffle(left, owner);
    begin = load(offsets + expert);
    end = load(offsets + expert + 1);
  }
  begin += tile * kRows;
  if (begin >= end) return {};
  return {begin, end - begin < kRows ? end - begin : kRows, expert};
}

/// Bytes of a stage of kTiles tiles of rows.
template <uint32_t kTiles>
inline constexpr uint32_t kExl3StageBytes = kExl3Block* kTiles* kExl3Shape.row_tile * 2;

/// Begins the copy of 128 inputs of a tile's rows: for each step, each tile of rows as it is
/// encoded.
template <uint32_t kTiles>
ATLAS_DEVICE void exl3_begin_inputs(const Exl3ProductGpuParams& params, const Exl3Tile& tile,
                                    uint32_t block, uint8_t* stage) {
  using namespace device;
  constexpr uint32_t kRowTile = kExl3Shape.row_tile, kStepBytes = exl3_step_bytes(kExl3Lanes);
  constexpr uint32_t kPieces = kExl3StageBytes<kTiles> / 16;
  constexpr uint32_t kThreads = kExl3ManyThreads, kPerHalf = kStepBytes / 32;
  constexpr uint32_t kPerRow = kPerHalf / kRowTile;  // pieces of a row in half a step
  constexpr uint32_t kSteps = kExl3StageBytes<kTiles> / (kTiles * kStepBytes);
  static_assert(kPieces % kThreads == 0);
  const auto* encoded = static_cast<const uint8_t*>(params.encoded);
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kPieces / kThreads; ++i) {
    const uint32_t piece = i * kThreads + thread_index();
    const uint32_t in_half = piece % kPerHalf, half = piece / kPerHalf % 2;
    const uint32_t row_tile = piece / (2 * kPerHalf) % kTiles;
    const uint32_t step = piece / (2 * kPerHalf) / kTiles;
    const uint32_t r = row_tile * kRowTile + in_half / kPerRow;
    // Rows that are not there repeat the last one; their sums go nowhere.
    const uint32_t at = tile.begin + (r < tile.rows ? r : tile.rows - 1);
    async_copy<16>(stage + 16 * piece,
                   encoded + at / kRowTile * exl3_row_tile_bytes(kExl3Lanes, params.k) +
                       (block * kSteps + step) * uint64_t{kStepBytes} + half * (kStepBytes / 2) +
                       exl3_encoded_lane(kExl3Lanes, at % kRowTile, in_half % kPerRow));
  }
}

/// Groups of outputs of a warp. With two, inputs would be read half as often, but ptxas spills.
inline constexpr uint32_t kExl3ManyGroups = 1;
template <uint32_t kUnits>
using Exl3ManyStream = Exl3Stream<kUnits, kExl3ManyStages, device::Reads::kAgain>;
template <uint32_t kTiles>
using Exl3ManySums = Exl3Sums[kExl3ManyGroups][kTiles];

/// totals += sums * the segment's powers of two; sums = 0.
template <uint32_t kTiles>
ATLAS_DEVICE void exl3_fold(const Exl3ProductGpuParams& params, const Exl3Tile& tile,
                            uint32_t segment, Exl3ManySums<kTiles>& sums,
                            Exl3ManySums<kTiles>& totals) {
  using namespace device;
  const float* powers = params.powers + uint64_t{segment} * params.rows + tile.begin;
  ATLAS_UNROLL
  for (uint32_t t = 0; t < kTiles; ++t) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kExl3Cells; ++i) {
      const uint32_t r = t * kExl3Shape.row_tile + exl3_cell(lane_index(), i).column;
      const float power = load(powers + (r < tile.rows ? r : tile.rows - 1));
      ATLAS_UNROLL
      for (uint32_t g = 0; g < kExl3ManyGroups; ++g) {
        totals[g][t].r[i] += sums[g][t].r[i] * power;
        sums[g][t].r[i] = 0.0f;
      }
    }
  }
}

/// The sums of 128 inputs, which are staged.
template <Exl3Codebook kCodebook, uint32_t kUnits, uint32_t kTiles>
ATLAS_DEVICE void exl3_many_block(Exl3ManyStream<kUnits> (&streams)[kExl3ManyGroups],
                                  const uint8_t* stage, Exl3ManySums<kTiles>& sums) {
  using namespace device;
  constexpr uint32_t kStepBytes = exl3_step_bytes(kExl3Lanes);
  stage += lane_index() % (kStepBytes / 32) * 16;
  for (uint32_t pair = 0; pair < kExl3Block / kExl3Shape.inputs; ++pair) {
    Exl3Words<kUnits> words[kExl3ManyGroups];
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kExl3ManyGroups; ++g) words[g] = streams[g].read();
    exl3_each_segment<kExl3Hot<kCodebook, kUnits>>(words, [&](uint32_t half,
                                                              const Exl3Segment<kUnits>(
                                                                  &segments)[kExl3ManyGroups]) {
      Exl3Weights weights[kExl3ManyGroups];
      ATLAS_UNROLL
      for (uint32_t g = 0; g < kExl3ManyGroups; ++g) {
        weights[g] = exl3_weights<kCodebook>(segments[g]);
      }
      ATLAS_UNROLL
      for (uint32_t t = 0; t < kTiles; ++t) {
        const uint8_t* from = stage + ((2 * pair + half) * kTiles + t) * kStepBytes;
        const Exl3Inputs inputs{{load_as<Words4>(from), load_as<Words4>(from + kStepBytes / 2)}};
        ATLAS_UNROLL
        for (uint32_t g = 0; g < kExl3ManyGroups; ++g) {
          exl3_multiply(sums[g][t], weights[g], inputs);
        }
      }
    });
  }
}

/// Transforms and writes the tile's rows, by way of shared memory.
template <uint32_t kTiles>
ATLAS_DEVICE void exl3_many_outputs(const Exl3ProductGpuParams& params, const Exl3Tile& tile,
                                    const uint8_t* weight, const Exl3ManySums<kTiles>& totals) {
  using namespace device;
  uint8_t* rows = shared_memory<uint8_t>();
  block_barrier();  // stages are read before rows of sums take their place
  ATLAS_UNROLL
  for (uint32_t g = 0; g < kExl3ManyGroups; ++g) {
    const uint32_t group = warp_index() * kExl3ManyGroups + g;
    ATLAS_UNROLL
    for (uint32_t t = 0; t < kTiles; ++t) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kExl3Cells; ++i) {
        const Cell cell = exl3_cell(lane_index(), i);
        auto* to = reinterpret_cast<float*>(rows + (t * kExl3Shape.row_tile + cell.column) *
                                                       kExl3ManyRowBytes);
        store(to + group * kExl3Shape.outputs + cell.row, totals[g][t].r[i]);
      }
    }
  }
  block_barrier();
  for (uint32_t r = warp_index(); r < tile.rows; r += kExl3ManyWarps) {
    exl3_write_outputs(load_as<Floats4>(rows + r * kExl3ManyRowBytes + 16 * lane_index()),
                       weight + 2 * uint64_t{params.k},
                       block_index() * kExl3Block + 4 * lane_index(), params.outputs,
                       params.y + uint64_t{tile.begin + r} * params.y_stride, params.epilogue);
  }
}

/// A tile of at most kTiles times kExl3Shape.row_tile rows.
template <Exl3Codebook kCodebook, uint32_t kUnits, uint32_t kTiles>
ATLAS_DEVICE void exl3_many_tile(const Exl3ProductGpuParams& params, const Exl3Tile& tile) {
  using namespace device;
  constexpr uint32_t kAhead = kExl3ManyStages - 1, kStageBytes = kExl3StageBytes<kTiles>;
  constexpr uint32_t kRingBytes = exl3_ring_bytes(kExl3Lanes, kUnits, kExl3ManyStages);
  const uint8_t* weight =
      static_cast<const uint8_t*>(params.weight) + tile.expert * params.expert_bytes;
  const uint32_t blocks = params.k / kExl3Block, pairs = params.k / kExl3Shape.inputs;
  uint8_t* stages = shared_memory<uint8_t>();
  uint8_t* ring =
      stages + kExl3ManyStages * kStageBytes + warp_index() * kExl3ManyGroups * kRingBytes;
  const uint64_t group = (block_index() * kExl3ManyWarps + warp_index()) * kExl3ManyGroups;
  const uint8_t* from = weight + exl3_gpu_head_bytes(params.n, params.k) +
                        group * pairs * exl3_pair_bytes(kExl3Lanes, kUnits);
  Exl3ManyStream<kUnits> streams[kExl3ManyGroups];
  ATLAS_UNROLL
  for (uint32_t g = 0; g < kExl3ManyGroups; ++g) {
    streams[g] = {from + uint64_t{g} * pairs * exl3_pair_bytes(kExl3Lanes, kUnits),
                  {pairs, 1, 0},
                  ring + g * kRingBytes};
  }
  const auto begin = [&](uint32_t block) {
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kExl3ManyGroups; ++g) streams[g].begin();
    if (block < blocks) {
      exl3_begin_inputs<kTiles>(params, tile, block,
                                stages + block % kExl3ManyStages * kStageBytes);
    }
    async_commit();
  };
  for (uint32_t block = 0; block < kAhead; ++block) begin(block);
  Exl3ManySums<kTiles> sums = {}, totals = {};
  uint32_t segment = 0;
  ATLAS_ROLLED
  for (uint32_t block = 0; block < blocks; ++block) {
    async_wait<kAhead - 1>();
    block_barrier();  // all threads' copies are there, and the oldest stage has been read
    begin(block + kAhead);
    exl3_many_block<kCodebook, kUnits, kTiles>(
        streams, stages + block % kExl3ManyStages * kStageBytes, sums);
    if (block + 1 == exl3_segment_begin(params.k, segment + 1)) {
      exl3_fold<kTiles>(params, tile, segment, sums, totals);
      ++segment;
    }
  }
  exl3_many_outputs<kTiles>(params, tile, weight, totals);
}

static_assert(kExl3ManyRows == kExl3ManyPart || kExl3ManyRows == 3 * kExl3ManyPart);
template <Exl3Codebook kCodebook, uint32_t kUnits>
ATLAS_DEVICE void exl3_many(const Exl3ProductGpuParams& params) {
  constexpr uint32_t kPartTiles = kExl3ManyPart / kExl3Shape.row_tile;
  const Exl3Tile tile = exl3_tile<kExl3ManyRows>(params.row_count, params.offsets, params.experts,
                                                 device::block_index<1>());
  if (tile.rows == 0) return;
  if constexpr (kExl3ManyRows > kExl3ManyPart) {
    if (tile.rows > 2 * kExl3ManyPart) {
      return exl3_many_tile<kCodebook, kUnits, 3 * kPartTiles>(params, tile);
    }
    if (tile.rows > kExl3ManyPart) {
      return exl3_many_tile<kCodebook, kUnits, 2 * kPartTiles>(params, tile);
    }
  }
  exl3_many_tile<kCodebook, kUnits, kPartTiles>(params, tile);
}

}  // namespace atlas::kernels
