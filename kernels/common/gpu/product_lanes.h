// A lane's part of a product with packed weights: fragments of weights and activations, and the
// sums of 16 outputs by a few rows. One form over mma.sync, one over WMMA (gpu_weights.h).
#pragma once

#include "kernels/common/device/device.h"
#include "kernels/common/device/stream.h"
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

/// Where the first 16 of a strand's bytes of a unit stand, and how far the next are behind them.
ATLAS_DEVICE const uint8_t* strand_at(const uint8_t* unit) {
  return device::kept(unit + 16 * strand_index());
}
inline constexpr uint32_t kPieceStep = 16 * strands(kFamily);

/// What a format's load_from() takes a lane's words of a unit through. Here: memory, read once.
struct FromMemory {
  ATLAS_DEVICE device::Words4 four(const uint8_t* at) { return device::load_once(at); }
  ATLAS_DEVICE device::Words2 two(const uint8_t* at) { return device::load_as<device::Words2>(at); }
  ATLAS_DEVICE uint32_t one(const uint8_t* at) { return device::load_as<uint32_t>(at); }
  ATLAS_DEVICE uint32_t half(const uint8_t* at) { return device::load_as<uint16_t>(at); }
};

/// The lane's bytes of a ring of slots in shared memory. A slot belongs to a warp; a lane reads
/// there what it has copied itself, words of one size side by side.
struct LaneSlots {
  device::SharedPlace fours, twos, ones;

  ATLAS_DEVICE explicit LaneSlots(uint8_t* at)
      : fours(at + 16 * device::lane_index()),
        twos(at + 8 * device::lane_index()),
        ones(at + 4 * device::lane_index()) {}
};

/// Begins copies of the words to a slot; what it gives is nothing.
template <device::Reads kReads>
struct ToSlot {
  const LaneSlots& slots;
  uint32_t at;

  ATLAS_DEVICE device::Words4 four(const uint8_t* from) {
    slots.fours.copy<16, kReads>(at, from);
    at += 16 * device::kWarpLanes;
    return {};
  }
  ATLAS_DEVICE device::Words2 two(const uint8_t* from) {
    slots.twos.copy<8, kReads>(at, from);
    at += 8 * device::kWarpLanes;
    return {};
  }
  ATLAS_DEVICE uint32_t one(const uint8_t* from) {
    slots.ones.copy<4, kReads>(at, from);
    at += 4 * device::kWarpLanes;
    return 0;
  }
  /// Copies are of four bytes at least: the word that has the two.
  ATLAS_DEVICE uint32_t half(const uint8_t* from) {
    return one(from - (reinterpret_cast<uint64_t>(from) & 2));
  }
};

/// Reads them there, in the same order. Of the addresses in memory only bit 1 counts.
struct FromSlot {
  const LaneSlots& slots;
  uint32_t at;

  ATLAS_DEVICE device::Words4 four(const uint8_t*) {
    at += 16 * device::kWarpLanes;
    return slots.fours.load<device::Words4>(at - 16 * device::kWarpLanes);
  }
  ATLAS_DEVICE device::Words2 two(const uint8_t*) {
    at += 8 * device::kWarpLanes;
    return slots.twos.load<device::Words2>(at - 8 * device::kWarpLanes);
  }
  ATLAS_DEVICE uint32_t one(const uint8_t*) {
    at += 4 * device::kWarpLanes;
    return slots.ones.load<uint32_t>(at - 4 * device::kWarpLanes);
  }
  ATLAS_DEVICE uint32_t half(const uint8_t* from) {
    return one(nullptr) >> 8 * (reinterpret_cast<uint64_t>(from) & 2) & 0xffff;
  }
};

/// A block of 32 elements of one column group's rows.
struct BlockInputs {
  device::Words4 w[kInputLoads];
  float sums[kLaneColumns];  // of the columns of the lane's cells, for formats with minima
};

/// `row`: the encoded row of the lane's input column in global or shared memory, from this block
/// on.
ATLAS_DEVICE BlockInputs load_inputs(const uint8_t* row) {
  BlockInputs x{};
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
