// Products with bf16, f16 and float32 weights (gpu_float.h), contract "bf16_k16_s256". An f16
// weight is the sum of two bf16 numbers and a float32 one of three, exactly: activations keep
// bf16's range, and all three formats share one input encoding.
#pragma once

#include "kernels/common/gpu/product_grouped.h"
#include "kernels/common/gpu_float.h"

namespace atlas::kernels {

template <FloatLayout kLayout>
struct FloatFormat {
  static constexpr uint32_t kUnit = kFloatUnit;
  static constexpr uint32_t kRun = kBf16Run;
  static constexpr uint32_t kAhead = kLayout == FloatLayout::kF32 ? 1 : 2;
  static constexpr bool kHeadScales = false, kRunScales = false, kDivides = true;
  static constexpr uint32_t kManyTiles = many_tiles(kFamily, gpu_float_wide(kLayout));
  static constexpr bool kF16 = false, kMinima = false;
  static constexpr uint32_t kParts = kLayout == FloatLayout::kBF16  ? 1
                                     : kLayout == FloatLayout::kF16 ? 2
                                                                    : 3;
  static constexpr uint32_t kFold = 0;
  static constexpr uint32_t kWordPieces = float_bytes(kLayout) / 2;  // of 16 bytes
  static constexpr uint32_t kPieces = kBlockWords * kWordPieces;
  static constexpr uint32_t kLaneBytes = 16 * kPieces;

  struct Unit {
    device::Words4 piece[kPieces];
  };

  static constexpr uint32_t kUnitBytes = gpu_float_unit_bytes(kLayout);
  ATLAS_DEVICE static uint32_t head_bytes(uint32_t) { return 0; }
  ATLAS_DEVICE static uint64_t group_bytes(uint32_t k) { return counter_offset(k) + kGpuFloatTail; }
  ATLAS_DEVICE static uint64_t counter_offset(uint32_t k) {
    return uint64_t{(k + kUnit - 1) / kUnit} * gpu_float_unit_bytes(kLayout);
  }
  /// Where the lane's bytes of a unit stand.
  using Place = const uint8_t*;
  ATLAS_DEVICE static Place place(const uint8_t* group, uint32_t unit, uint32_t) {
    return strand_at(group + uint64_t{unit} * gpu_float_unit_bytes(kLayout));
  }
  ATLAS_DEVICE static Place staged(const uint8_t* units) {
    return units + 16 * device::lane_index();
  }
  ATLAS_DEVICE static Unit load(const uint8_t* group, uint32_t unit, uint32_t k) {
    FromMemory memory;
    return load_from(memory, place(group, unit, k), 0);
  }
  template <class From>
  ATLAS_DEVICE static Unit load_from(From& from, Place first, uint32_t unit) {
    Unit out;
    const uint8_t* at = first + unit * gpu_float_unit_bytes(kLayout);
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) out.piece[i] = from.four(at + i * kPieceStep);
    return out;
  }

  /// The upper halves of two float32: bf16 by cutting.
  ATLAS_DEVICE static uint32_t cut(float low, float high) {
    return device::bits_as<uint32_t>(low) >> 16 | (device::bits_as<uint32_t>(high) & 0xffff0000u);
  }
  ATLAS_DEVICE static float rest(float x) {
    return x - device::bits_as<float>(device::bits_as<uint32_t>(x) & 0xffff0000u);
  }
  /// Elements 2 i and 2 i + 1 of a word.
  ATLAS_DEVICE static void elements(const Unit& unit, uint32_t word, uint32_t i, float* out) {
    if constexpr (kLayout == FloatLayout::kF32) {
      const device::Words4& piece = unit.piece[word * 2 + i / 2];
      out[0] = device::bits_as<float>(piece.w[i % 2 * 2]);
      out[1] = device::bits_as<float>(piece.w[i % 2 * 2 + 1]);
    } else {
      out[0] = device::f16_low(unit.piece[word].w[i]);
      out[1] = device::f16_high(unit.piece[word].w[i]);
    }
  }
  ATLAS_DEVICE static void pairs(const Unit& unit, uint32_t, uint32_t part, uint32_t* out) {
    ATLAS_UNROLL
    for (uint32_t word = 0; word < kBlockWords; ++word) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        if constexpr (kLayout == FloatLayout::kBF16) {
          out[4 * word + i] = unit.piece[word].w[i];
        } else {
          float two[2];
          elements(unit, word, i, two);
          for (uint32_t p = 0; p < part; ++p) {
            two[0] = rest(two[0]);
            two[1] = rest(two[1]);
          }
          out[4 * word + i] = cut(two[0], two[1]);
        }
      }
    }
  }
  ATLAS_DEVICE static float run_value(const uint8_t*, uint32_t, uint32_t, float sum) { return sum; }
  ATLAS_DEVICE static float finish(const uint8_t*, uint32_t, uint32_t, float total) {
    return total;
  }
  ATLAS_DEVICE static float element(const uint8_t* group, uint32_t unit, uint32_t, uint32_t strand,
                                    uint32_t word, uint32_t e, uint32_t) {
    constexpr uint32_t kBytes = float_bytes(kLayout);
    const uint8_t* at = group + uint64_t{unit} * gpu_float_unit_bytes(kLayout) +
                        strand_offset(kFamily, strand, (word * kWordElements + e) * kBytes);
    if constexpr (kLayout == FloatLayout::kF32) return device::load_as<float>(at);
    const uint32_t bits = device::load_as<uint16_t>(at);
    return kLayout == FloatLayout::kF16 ? device::f16_value(bits) : device::bf16_low(bits);
  }
};

}  // namespace atlas::kernels
