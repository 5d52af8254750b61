// A tile of 16 outputs by 16 rows, and one step of 16 elements along k: two mma.sync m16n8k16 or
// one WMMA 16x16x16. Weights are A, rows of activations are the columns of B.
#pragma once

#include "kernels/common/device/device.h"

namespace atlas::kernels {

/// Sums of one lane; cell i is of output tile_cell(lane, i).row and row tile_cell(lane, i).column.
struct TileSums {
  float r[8];
};

#if defined(ATLAS_HAS_MMA_SYNC)
struct TileWeights {
  device::MmaA a;
};
/// Two fragments B: rows 0 to 7 and 8 to 15.
struct TileInputs {
  device::MmaB b[2];
};

ATLAS_DEVICE device::Cell tile_cell(uint32_t lane, uint32_t i) {
  const device::Cell cell = device::mma_cell(lane, i % 4);
  return {cell.row, cell.column + 8 * (i / 4)};
}

ATLAS_DEVICE TileWeights load_tile(const uint8_t* tile ATLAS_SITE) {
  const device::Words4 words = device::load_once(tile + 16 * device::lane_index() ATLAS_AT_SITE);
  return {{{words.w[0], words.w[1], words.w[2], words.w[3]}}};
}

/// `pair(row, k)` gives the elements k and k + 1 of a row as bf16.
template <typename Pair>
ATLAS_DEVICE TileInputs make_inputs(uint32_t rows, const Pair& pair) {
  const uint32_t lane = device::lane_index();
  TileInputs inputs{};
  ATLAS_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    ATLAS_UNROLL
    for (uint32_t r = 0; r < 2; ++r) {
      const device::Element at = device::mma_b_element(lane, r, 0, 2);
      const uint32_t row = at.row + 8 * half;
      if (row < rows) inputs.b[half].r[r] = pair(row, at.k);
    }
  }
  return inputs;
}

/// sums += weights * inputs; rows past `rows` need not be summed.
ATLAS_DEVICE void multiply_tile(TileSums& sums, const TileWeights& weights,
                                const TileInputs& inputs, uint32_t rows) {
  ATLAS_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    if (rows <= 8 * half) continue;
    float* r = sums.r + 4 * half;
    device::MmaSums part{{r[0], r[1], r[2], r[3]}};
    device::mma_bf16(part, weights.a, inputs.b[half]);
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) r[i] = part.r[i];
  }
}

#else
struct TileWeights {
  device::WmmaHalves a;
};
struct TileInputs {
  device::WmmaHalves b;
};

ATLAS_DEVICE device::Cell tile_cell(uint32_t lane, uint32_t i) {
  return device::wmma_cell(lane, i);
}

/// Both halves of the wave load the same rows; the second finds them in the cache.
ATLAS_DEVICE TileWeights load_tile(const uint8_t* tile ATLAS_SITE) {
  const uint8_t* row = tile + 32 * (device::lane_index() % 16);
  const device::Words4 low = device::load_once(row ATLAS_AT_SITE);
  const device::Words4 high = device::load_once(row + 16 ATLAS_AT_SITE);
  return {{{low.w[0], low.w[1], low.w[2], low.w[3], high.w[0], high.w[1], high.w[2], high.w[3]}}};
}

template <typename Pair>
ATLAS_DEVICE TileInputs make_inputs(uint32_t rows, const Pair& pair) {
  const uint32_t row = device::lane_index() % 16;
  TileInputs inputs{};
  if (row >= rows) return inputs;
  ATLAS_UNROLL
  for (uint32_t r = 0; r < 8; ++r) inputs.b.r[r] = pair(row, 2 * r);
  return inputs;
}

ATLAS_DEVICE void multiply_tile(TileSums& sums, const TileWeights& weights,
                                const TileInputs& inputs, uint32_t rows) {
  static_cast<void>(rows);
  device::WmmaSums part = device::bits_as<device::WmmaSums>(sums);
  device::wmma_bf16(part, weights.a, inputs.b);
  sums = device::bits_as<TileSums>(part);
}
#endif

}  // namespace atlas::kernels
