// linear_bf16 for every GPU pack: y = x W^T by matrix instructions over resident tiles of bf16
// (gpu_grids.h), contract "bf16_k16_s256". A block does 16 outputs of up to 16 rows; warps take the
// segments of k in turn and leave their sums in shared memory, where they are added in ascending
// order: so the bits depend on k alone, not on rows or warps.
#pragma once

#include "kernels/common/gpu/tile.h"
#include "plugins/abi/atlas_plugin.h"  // ATLAS_EPILOGUE_*

namespace atlas::kernels {

/// Elements k and k + 1 of a row as bf16; what lies past the row's end is 0.
ATLAS_DEVICE uint32_t input_pair(const float* row, uint32_t k, uint32_t count) {
  using namespace device;
  if (k + 1 < count) {
    // Rows are aligned to 8 bytes or not, all lanes alike.
    if ((reinterpret_cast<uint64_t>(row) & 7) == 0) {
      const Floats2 two = load_as<Floats2>(row + k);
      return bf16_pair(two.f[0], two.f[1]);
    }
    return bf16_pair(load(row + k), load(row + k + 1));
  }
  return k < count ? bf16_pair(load(row + k), 0.0f) : 0u;
}

/// Sums of one segment of k: `steps` tiles from `tile` on, against rows of x from element `first`
/// on.
ATLAS_DEVICE TileSums sum_segment(const uint8_t* tile, uint32_t steps, const uint8_t* x,
                                  const LinearParams& params, uint32_t first, uint32_t rows) {
  constexpr uint32_t kAhead = 8;  // tiles in flight: 4 KiB a warp
  TileSums sums{};
  for (uint32_t begin = 0; begin < steps; begin += kAhead) {
    TileWeights weights[kAhead];
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (begin + i < steps) weights[i] = load_tile(tile + (begin + i) * kBf16TileBytes);
    }
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (begin + i >= steps) continue;
      const uint32_t k = first + (begin + i) * kTileEdge;
      const TileInputs inputs = make_inputs(rows, [&](uint32_t row, uint32_t at) {
        return input_pair(reinterpret_cast<const float*>(x + row * params.x_row_bytes), k + at,
                          params.k);
      });
      multiply_tile(sums, weights[i], inputs, rows);
    }
  }
  return sums;
}

ATLAS_DEVICE_KERNEL(linear_bf16, LinearParams, kLinearThreads) {
  using namespace device;
  constexpr uint32_t kCells = kTileEdge * kTileEdge, kSteps = kBf16Segment / kTileEdge;
  static_assert(kCells == kLinearThreads, "a thread adds up one cell");
  const uint32_t row_count = load(params.row_count);
  const uint32_t first_row = block_index<1>() * kTileEdge;
  if (first_row >= row_count) return;
  const uint32_t rows = row_count - first_row < kTileEdge ? row_count - first_row : kTileEdge;
  const uint32_t tiles = (params.k + kTileEdge - 1) / kTileEdge;
  const uint32_t segments = (tiles + kSteps - 1) / kSteps;
  const uint8_t* group =
      static_cast<const uint8_t*>(params.weight) + uint64_t{block_index()} * tiles * kBf16TileBytes;
  const uint8_t* x = static_cast<const uint8_t*>(params.x) + first_row * params.x_row_bytes;
  float* parts = shared_memory<float>();

  float total = 0.0f;
  for (uint32_t first = 0; first < segments; first += kLinearWarps) {
    const uint32_t segment = first + warp_index();
    if (segment < segments) {
      const uint32_t left = tiles - segment * kSteps;
      const TileSums sums =
          sum_segment(group + uint64_t{segment} * kSteps * kBf16TileBytes,
                      left < kSteps ? left : kSteps, x, params, segment * kBf16Segment, rows);
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 8; ++i) {
        const Cell cell = tile_cell(lane_index(), i);
        store(parts + warp_index() * kCells + cell.column * kTileEdge + cell.row, sums.r[i]);
      }
    }
    block_barrier();  // the round's sums are written before they are added up
    const uint32_t count = segments - first < kLinearWarps ? segments - first : kLinearWarps;
    for (uint32_t w = 0; w < count; ++w) total += load(parts + w * kCells + thread_index());
    if (first + kLinearWarps < segments)
      block_barrier();  // and read before the next overwrites them
  }

  const uint32_t row = thread_index() / kTileEdge;
  const uint32_t output = block_index() * kTileEdge + thread_index() % kTileEdge;
  if (row >= rows || output >= params.n) return;
  float* y = params.y + uint64_t{first_row + row} * params.y_stride + output;
  store(y, params.epilogue == ATLAS_EPILOGUE_ADD ? load(y) + total : total);
}

}  // namespace atlas::kernels
