// A lane's part of a product with packed weights: fragments of weights and activations, and the
// sums of 16 outputs by a few rows. One form over mma.sync, one over WMMA (gpu_weights.h).
#pragma once

#include "kernels/common/device/device.h"
#include "kernels/common/gpu_weights.h"

namespace atlas::kernels {

#if defined(ATLAS_HAS_MMA_SYNC)
inline constexpr MatrixFamily kFamily = MatrixFamily::kMma;
inline constexpr uint32_t kColumns = 8;      // rows of activations of one matrix instruction
inline constexpr uint32_t kCells = 4;        // sums of a lane
inline constexpr uint32_t kLaneColumns = 2;  // of which it holds sums
inline constexpr uint32_t kInputLoads = 1;   // of 16 bytes for a block
using Sums = device::MmaSums;
#else
inline constexpr MatrixFamily kFamily = MatrixFamily::kWmma;
inline constexpr uint32_t kColumns = 16;
inline constexpr uint32_t kCells = 8;
inline constexpr uint32_t kLaneColumns = 1;
inline constexpr uint32_t kInputLoads = 4;
using Sums = device::WmmaSums;
#endif
inline constexpr uint32_t kBlockWords = block_words(kFamily);
inline constexpr uint32_t kLaneRows = lane_rows(kFamily);
inline constexpr uint32_t kBlockPairs = 4 * kBlockWords;  // pairs of 16-bit weights of a block

ATLAS_DEVICE uint32_t strand_index() { return device::lane_index() % strands(kFamily); }
/// The row of activations, of a column group, whose elements this lane brings.
ATLAS_DEVICE uint32_t input_column() {
  return kFamily == MatrixFamily::kMma ? device::lane_index() / 4 : device::lane_index() % 16;
}
/// Cell i of a lane's sums: which of its rows (outputs), and which output and column that is.
ATLAS_DEVICE constexpr uint32_t cell_lane_row(uint32_t i) {
  return kFamily == MatrixFamily::kMma ? i / 2 : i;
}
ATLAS_DEVICE device::Cell sum_cell(uint32_t i) {
#if defined(ATLAS_HAS_MMA_SYNC)
  return device::mma_cell(device::lane_index(), i);
#else
  return device::wmma_cell(device::lane_index(), i);
#endif
}

/// 16 bytes of a strand's bytes of a unit.
ATLAS_DEVICE device::Words4 load_piece(const uint8_t* unit, uint32_t piece ATLAS_SITE) {
  return device::load_once(unit + (piece * strands(kFamily) + strand_index()) * 16 ATLAS_AT_SITE);
}

/// A block of 32 elements of one column group's rows.
struct BlockInputs {
  device::Words4 w[kInputLoads];
  float sums[kLaneColumns];  // of the columns of the lane's cells, for formats with minima
};

/// `row`: the encoded row of the lane's input column in global or shared memory, from this block
/// on; null reads as zeros.
ATLAS_DEVICE BlockInputs load_inputs(const uint8_t* row) {
  BlockInputs x{};
  if (row == nullptr) return x;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kInputLoads; ++i) {
    const uint32_t piece = kInputLoads == 1 ? device::lane_index() % 4 : i;
    x.w[i] = device::load_as<device::Words4>(row + 16 * piece);
  }
  return x;
}

/// Elements 16 step ... 16 step + 15 of a block: sums += weights x. `pairs` are the strand's words,
/// four pairs each.
template <bool kF16>
ATLAS_DEVICE void multiply_step(Sums& sums, const uint32_t* pairs, const BlockInputs& x,
                                uint32_t step) {
#if defined(ATLAS_HAS_MMA_SYNC)
  const device::MmaA a{
      {pairs[2 * step], pairs[4 + 2 * step], pairs[2 * step + 1], pairs[4 + 2 * step + 1]}};
  const device::MmaB b{{x.w[0].w[2 * step], x.w[0].w[2 * step + 1]}};
  if constexpr (kF16) {
    device::mma_f16(sums, a, b);
  } else {
    device::mma_bf16(sums, a, b);
  }
#else
  device::WmmaHalves a, b;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 8; ++i) {
    a.r[i] = pairs[8 * step + i];
    b.r[i] = x.w[i / 2].w[2 * step + i % 2];
  }
  if constexpr (kF16) {
    device::wmma_f16(sums, a, b);
  } else {
    device::wmma_bf16(sums, a, b);
  }
#endif
}

}  // namespace atlas::kernels
