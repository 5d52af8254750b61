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

}  // namespace atlas::kernels
