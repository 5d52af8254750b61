// Products with packed weights for every GPU pack: y = x W^T, dense and of experts, for few rows
// (product_few.h) and for many, and rows of W by number. One arithmetic for all of them:
//   along k, runs of F::kRun elements, each summed from zero by matrix instructions of 16 elements
//   in ascending k (or, with F::kFold, by float32 fma of the scaled sums of kFold elements); runs
//   are added in ascending order in float32, from zero.
// So a row's bits depend on x, W and k alone.
//
// What a format must give (struct F; layouts and words are those of gpu_weights.h):
//   kUnit      elements of k of a unit: 32 or 64
//   kRun       a multiple of 64
//   kManyTiles groups of 16 outputs of a warp of the kernel for many rows: 2, or 1 for a format
//              with many registers a unit
//   kF16       operands are f16, else bf16
//   kParts     16-bit numbers whose sum is one weight; 1 but for wide floats
//   kFold      0, or 16 or 32: elements that share a scale which is no part of the 16-bit weights
//   kMinima    with kFold: whether a block of 32 adds minimum * (sum of its x)
//   group_bytes(k)                            of a group of 16 outputs
//   struct Unit                               a lane's registers of one unit
//   Place, Place place(group, unit, k)        where a unit stands
//   Unit load_from(from, place, i)            all loads of the i-th unit behind it, through
//                                             FromMemory and its like
//   Unit load(group, unit, k)                 from memory
//   void pairs(unit, block, part, out)        the strand's kBlockWords words of a block of the unit
//                                             as 16-bit pairs: element e of a word in pair e / 2
//   float scale(unit, block, half, i), float minimum(unit, block, i)
//                                             with kFold, of lane row i; half: elements 16 half..
//   float run_value(group, run, k, sum)       a run's value from its sum
//   float finish(group, output, k, total)     a result from its total
//   float element(group, unit, block, strand, word, e, k)   one weight, read from memory, for
//   gathers
// All are static device functions; a format with kFold 0 leaves out scale and minimum.
#pragma once

#include "kernels/common/gpu/product_lanes.h"
#include "kernels/common/gpu_products.h"
#include "plugins/abi/atlas_plugin.h"  // ATLAS_EPILOGUE_*

// Registers that are loaded before they are read, which not every host compiler sees.
#if defined(ATLAS_FORM_EMULATED)
#define ATLAS_UNSET \
  {}
#else
#define ATLAS_UNSET
#endif

namespace atlas::kernels {

/// run += a block whose elements share scales: each sum of F::kFold elements times its scale.
template <class F>
ATLAS_DEVICE void fold_block(Sums& run, const typename F::Unit& unit, uint32_t block,
                             const uint32_t* pairs, const BlockInputs& x) {
  Sums part{};
  ATLAS_UNROLL
  for (uint32_t step = 0; step < 2; ++step) {
    multiply_step<F::kF16>(part, pairs, x, step);
    if (F::kFold == 32 && step == 0) continue;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kCells; ++i) {
      run.r[i] = device::fma(F::scale(unit, block, step, cell_lane_row(i)), part.r[i], run.r[i]);
      part.r[i] = 0.0f;
    }
  }
  if constexpr (F::kMinima) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kCells; ++i) {
      run.r[i] = device::fma(F::minimum(unit, block, cell_lane_row(i)), x.sums[i % kLaneColumns],
                             run.r[i]);
    }
  }
}

/// kTiles groups of 16 outputs by kGroups column groups: sums += a block of 32 elements, part after
/// part. `inputs(g)` brings the activations of column group g, `wanted(g)` says whether it has rows
/// (for all lanes).
template <class F, uint32_t kTiles, uint32_t kGroups, class Inputs, class Wanted>
ATLAS_DEVICE void multiply_block(Sums (&sums)[kTiles][kGroups],
                                 const typename F::Unit* (&units)[kTiles], uint32_t block,
                                 const Inputs& inputs, const Wanted& wanted) {
  uint32_t pairs[kTiles][F::kParts][kBlockPairs];
  ATLAS_UNROLL
  for (uint32_t tile = 0; tile < kTiles; ++tile) {
    ATLAS_UNROLL
    for (uint32_t part = 0; part < F::kParts; ++part) {
      F::pairs(*units[tile], block, part, pairs[tile][part]);
    }
  }
  ATLAS_UNROLL
  for (uint32_t group = 0; group < kGroups; ++group) {
    if (!wanted(group)) continue;
    const BlockInputs x = inputs(group);
    ATLAS_UNROLL
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      if constexpr (F::kFold == 0) {
        ATLAS_UNROLL
        for (uint32_t part = 0; part < F::kParts; ++part) {
          multiply_step<F::kF16>(sums[tile][group], pairs[tile][part], x, 0);
          multiply_step<F::kF16>(sums[tile][group], pairs[tile][part], x, 1);
        }
      } else {
        static_assert(F::kParts == 1);
        fold_block<F>(sums[tile][group], *units[tile], block, pairs[tile][0], x);
      }
    }
  }
}

/// Rows of a product that one block multiplies: row i stands at `row(i)` of x and `first + i` of y.
struct ProductRows {
  const uint8_t* x;
  const uint32_t* source;  // null: row first + i of x
  uint64_t x_row_bytes;
  uint32_t first, count;

  ATLAS_DEVICE const uint8_t* row(uint32_t i) const {
    const uint32_t at = source == nullptr ? first + i : device::load(source + first + i);
    return x + at * x_row_bytes;
  }
};

/// Groups of 16 outputs that one block multiplies, of a matrix [n, k].
struct ProductTiles {
  const uint8_t* weight;  // of the matrix
  uint32_t first, count;  // groups
  uint32_t n, k;
};

struct ProductResult {
  float* y;
  uint64_t stride;
  bool add;

  ATLAS_DEVICE void put(uint32_t row, uint32_t output, float value) const {
    float* at = y + row * stride + output;
    device::store(at, add ? device::load(at) + value : value);
  }
};

// ---- Many rows
// A block does 4 * kManyTiles groups of outputs for 128 rows (64 with WMMA). Activations go through
// shared memory by asynchronous copies, three stages of 64 elements; weights go to the registers of
// the warps that multiply with them, a stage ahead.

inline constexpr uint32_t kManyRows = many_rows_of(kFamily), kManyWarpRows = kManyRows / 2;
inline constexpr uint32_t kManyStageBytes = many_stage_bytes(kFamily);
/// Threads that copy a row of a stage, 16 bytes each, so that a request is whole sectors of memory;
/// and rows that each has.
inline constexpr uint32_t kManyCopiers = kManyRowBytes / 16;
inline constexpr uint32_t kManyCopies = kManyRows * kManyCopiers / kProductThreads;

template <class F>
struct ManyUnits {
  static constexpr uint32_t kCount = kManyStage / F::kUnit;
  typename F::Unit unit[kCount][F::kManyTiles];
};
/// Whether registers for a second stage of weights are there.
template <class F>
inline constexpr bool kManyAhead = sizeof(ManyUnits<F>) <= 192 &&
                                   (kFamily == MatrixFamily::kMma || F::kFold == 0);

/// Unit number `unit` of the warp's groups.
template <class F>
ATLAS_DEVICE void load_many_units(typename F::Unit (&to)[F::kManyTiles], const ProductTiles& tiles,
                                  uint32_t tile, uint32_t unit) {
  if (unit >= whole_units(tiles.k, F::kUnit)) return;
  const uint64_t group_bytes = F::group_bytes(tiles.k);
  ATLAS_UNROLL
  for (uint32_t t = 0; t < F::kManyTiles; ++t) {
    if (tile + t >= tiles.count) continue;
    to[t] = F::load(tiles.weight + (tiles.first + tile + t) * group_bytes, unit, tiles.k);
  }
}
template <class F>
ATLAS_DEVICE void load_many_stage(ManyUnits<F>& to, const ProductTiles& tiles, uint32_t tile,
                                  uint32_t stage) {
  ATLAS_UNROLL
  for (uint32_t i = 0; i < ManyUnits<F>::kCount; ++i) {
    load_many_units<F>(to.unit[i], tiles, tile, stage * ManyUnits<F>::kCount + i);
  }
}

/// Where piece `piece` (16 bytes) of a row's 64 elements stands: two rows that are read together
/// use different banks.
ATLAS_DEVICE uint32_t many_flip(uint32_t row) { return row % 2 * 4; }
/// Row `i` of those that the thread copies.
ATLAS_DEVICE uint32_t many_line(uint32_t i) {
  return device::thread_index() / kManyCopiers + i * (kProductThreads / kManyCopiers);
}

/// Begins the copies of a stage: a thread has a piece of each of its rows. Rows past the last
/// repeat it.
template <class F>
ATLAS_DEVICE void copy_stage_inputs(const uint8_t* const (&rows)[kManyCopies], uint32_t stage,
                                    uint32_t k) {
  const uint32_t slot = stage % kManyStages, piece = device::thread_index() % kManyCopiers;
  uint8_t* to = device::shared_memory<uint8_t>(kProductSharedHead) + slot * kManyStageBytes;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kManyCopies; ++i) {
    const uint32_t line = many_line(i);
    device::async_copy<16>(to + line * kManyRowBytes + 16 * (piece ^ many_flip(line)),
                           rows[i] + stage * kManyRowBytes + 16 * piece);
    if (F::kMinima && piece == 0) {
      device::async_copy<8>(to + kManyRows * kManyRowBytes + line * 8,
                            rows[i] + bf16_sums_offset(k) + stage * 8);
    }
  }
}

template <class F>
ATLAS_DEVICE void many_rows(const ProductTiles& tiles, const ProductRows& rows,
                            const ProductResult& result) {
  using namespace device;
  constexpr uint32_t kTiles = F::kManyTiles, kGroups = kManyWarpRows / kColumns;
  constexpr uint32_t kRunStages = F::kRun / kManyStage;
  const uint32_t warp_row = warp_index() / 4 * kManyWarpRows;
  const uint32_t tile = warp_index() % 4 * kTiles;
  const uint8_t* copied[kManyCopies];
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kManyCopies; ++i) {
    copied[i] = rows.row(many_line(i) < rows.count ? many_line(i) : rows.count - 1);
  }
  const auto stages = static_cast<uint32_t>(whole_units(tiles.k, kManyStage));
  const bool works = warp_row < rows.count && tile < tiles.count;  // the warp, all lanes alike

  ATLAS_UNROLL
  for (uint32_t stage = 0; stage < kManyStages - 1; ++stage) {
    if (stage < stages) copy_stage_inputs<F>(copied, stage, tiles.k);
    async_commit();
  }
  ManyUnits<F> now ATLAS_UNSET;
  if (works && kManyAhead<F>) load_many_stage<F>(now, tiles, tile, 0);
  Sums totals[kTiles][kGroups] = {}, sums[kTiles][kGroups] = {};
  for (uint32_t stage = 0; stage < stages; ++stage) {
    async_wait<kManyStages - 2>();
    block_barrier();  // the stage's rows are there for all, and the slot that is filled now is free
    if (stage + kManyStages - 1 < stages)
      copy_stage_inputs<F>(copied, stage + kManyStages - 1, tiles.k);
    async_commit();
    if (!works) continue;
    ManyUnits<F> next ATLAS_UNSET;
    if (kManyAhead<F> && stage + 1 < stages) {
      load_many_stage<F>(next, tiles, tile, stage + 1);
    }
    const uint8_t* staged =
        shared_memory<uint8_t>(kProductSharedHead) + stage % kManyStages * kManyStageBytes;
    constexpr uint32_t kUnitBlocks = F::kUnit / kBlockElements;
    const auto multiply = [&](const typename F::Unit(&unit)[kTiles], uint32_t block) {
      if (stage * kManyStage + block * kBlockElements >= tiles.k) return;
      const typename F::Unit* units[kTiles];
      ATLAS_UNROLL
      for (uint32_t t = 0; t < kTiles; ++t) units[t] = &unit[t];
      multiply_block<F>(
          sums, units, block % kUnitBlocks,
          [&](uint32_t group) {
            const uint32_t at = warp_row + group * kColumns;
            const uint32_t own = at + input_column();
            // A block is half of a row's pieces, and the flip exchanges the halves.
            BlockInputs x =
                load_inputs(staged + own * kManyRowBytes + 16 * (4 * block ^ many_flip(own)));
            if constexpr (F::kMinima) {
              ATLAS_UNROLL
              for (uint32_t c = 0; c < kLaneColumns; ++c) {
                const uint32_t column =
                    kLaneColumns == 1 ? input_column() : 2 * (lane_index() % 4) + c;
                x.sums[c] = load_as<float>(staged + kManyRows * kManyRowBytes + (at + column) * 8 +
                                           block * 4);
              }
            }
            return x;
          },
          [&](uint32_t group) {
            schedule_barrier();  // one group's activations in registers at a time
            return warp_row + group * kColumns < rows.count;
          });
    };
    constexpr uint32_t kStageBlocks = kManyStage / kBlockElements;
    if constexpr (kManyAhead<F>) {
      ATLAS_UNROLL
      for (uint32_t block = 0; block < kStageBlocks; ++block) {
        multiply(now.unit[block / kUnitBlocks], block);
      }
    } else if constexpr (ManyUnits<F>::kCount == 1) {
      typename F::Unit fresh[kTiles] ATLAS_UNSET;
      load_many_units<F>(fresh, tiles, tile, stage);
      ATLAS_UNROLL
      for (uint32_t block = 0; block < kStageBlocks; ++block) multiply(fresh, block);
    } else {
      static_assert(kUnitBlocks == 1);
      ATLAS_ROLLED
      for (uint32_t block = 0; block < kStageBlocks; ++block) {
        typename F::Unit fresh[kTiles] ATLAS_UNSET;
        load_many_units<F>(fresh, tiles, tile, stage * kStageBlocks + block);
        multiply(fresh, block);
      }
    }
    if ((stage + 1) % kRunStages == 0 || stage + 1 == stages) {
      ATLAS_UNROLL
      for (uint32_t t = 0; t < kTiles; ++t) {
        const uint8_t* group = tiles.weight + (tiles.first + tile + t) * F::group_bytes(tiles.k);
        if (tile + t >= tiles.count) continue;
        ATLAS_UNROLL
        for (uint32_t g = 0; g < kGroups; ++g) {
          ATLAS_UNROLL
          for (uint32_t i = 0; i < kCells; ++i) {
            totals[t][g].r[i] += F::run_value(group, stage / kRunStages, tiles.k, sums[t][g].r[i]);
            sums[t][g].r[i] = 0.0f;
          }
        }
      }
    }
    if constexpr (kManyAhead<F>) now = next;
  }
  block_barrier();  // the last stage is read before the next work overwrites it
  if (!works) return;
  ATLAS_UNROLL
  for (uint32_t t = 0; t < kTiles; ++t) {
    if (tile + t >= tiles.count) continue;
    const uint32_t at = tiles.first + tile + t;
    const uint8_t* group = tiles.weight + at * F::group_bytes(tiles.k);
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kCells; ++i) {
        const Cell cell = sum_cell(i);
        const uint32_t own = warp_row + g * kColumns + cell.column;
        const uint32_t output = at * kTileOutputs + cell.row;
        if (own >= rows.count || output >= tiles.n) continue;
        result.put(rows.first + own, output,
                   F::finish(group, cell.row, tiles.k, totals[t][g].r[i]));
      }
    }
  }
}

template <class F>
ATLAS_DEVICE void linear_many(const LinearParams& params) {
  const uint32_t row_count = device::load(params.row_count);
  const uint32_t first = device::block_index<1>() * kManyRows;
  if (first >= row_count) return;
  const uint32_t left = row_count - first, groups = tiles_of(params.n);
  const uint32_t begin = device::block_index() * (4 * F::kManyTiles);
  const ProductTiles tiles{static_cast<const uint8_t*>(params.weight), begin,
                           groups - begin < 4 * F::kManyTiles ? groups - begin : 4 * F::kManyTiles,
                           params.n, params.k};
  const ProductRows rows{static_cast<const uint8_t*>(params.x), nullptr, params.x_row_bytes, first,
                         left < kManyRows ? left : kManyRows};
  many_rows<F>(tiles, rows, {params.y, params.y_stride, params.epilogue == ATLAS_EPILOGUE_ADD});
}

}  // namespace atlas::kernels
