// Products with NVFP4 weights (gpu_nvfp4.h), contract "bf16_k16_s256": e2m1 times e4m3 is exact in
// bf16, so only the matrix scale is left, which is multiplied with an output's total.
#pragma once

#include "kernels/common/gpu/product_grouped.h"
#include "kernels/common/gpu_nvfp4.h"

namespace atlas::kernels {

struct Nvfp4Format {
  static constexpr uint32_t kUnit = kGpuNvfp4Unit;
  static constexpr uint32_t kRun = kBf16Run;
  static constexpr uint32_t kAhead = 1;
  static constexpr bool kHeadScales = true, kRunScales = false, kDivides = false;
  static constexpr uint32_t kManyTiles = many_tiles(kFamily, false);
  static constexpr bool kF16 = false, kMinima = false;
  static constexpr uint32_t kParts = 1, kFold = 0;
  static constexpr uint32_t kPieces = kBlockWords / 2;
  static constexpr uint32_t kScaleWords = kFamily == MatrixFamily::kMma ? 2 : 1;  // rows' four
  static constexpr uint32_t kLaneBytes = 16 * kPieces + 4 * kScaleWords;

  struct Unit {
    device::Words4 codes[kPieces];
    uint32_t scales[kScaleWords];
  };

  static constexpr uint32_t kUnitBytes = kGpuNvfp4UnitBytes;
  ATLAS_DEVICE static uint32_t head_bytes(uint32_t) { return kGpuNvfp4Head; }
  ATLAS_DEVICE static uint64_t group_bytes(uint32_t k) {
    return kGpuNvfp4Head + uint64_t{(k + kUnit - 1) / kUnit} * kGpuNvfp4UnitBytes;
  }
  /// Where the lane's bytes of a unit stand.
  struct Place {
    const uint8_t *codes, *scales;
  };
  ATLAS_DEVICE static Place place(const uint8_t* group, uint32_t unit, uint32_t) {
    const uint8_t* at = group + kGpuNvfp4Head + uint64_t{unit} * kGpuNvfp4UnitBytes;
    return {strand_at(at + kGpuNvfp4Scales),
            device::kept(at +
                         (kScaleWords == 2 ? 8 * (device::lane_index() / 4) : 4 * strand_index()))};
  }
  ATLAS_DEVICE static Place staged(const uint8_t* units) {
    return {units + kGpuNvfp4Scales + 16 * device::lane_index(),
            units + 8 * (device::lane_index() / 4)};
  }
  ATLAS_DEVICE static Unit load(const uint8_t* group, uint32_t unit, uint32_t k) {
    FromMemory memory;
    return load_from(memory, place(group, unit, k), 0);
  }
  template <class From>
  ATLAS_DEVICE static Unit load_from(From& from, const Place& first, uint32_t unit) {
    const uint32_t at = unit * kGpuNvfp4UnitBytes;
    Unit out;
    if constexpr (kScaleWords == 2) {
      const device::Words2 scales = from.two(first.scales + at);
      out.scales[0] = scales.w[0];
      out.scales[1] = scales.w[1];
    } else {
      out.scales[0] = from.one(first.scales + at);
    }
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) {
      out.codes[i] = from.four(first.codes + at + i * kPieceStep);
    }
    return out;
  }

  /// Scale `index` of four, times 2^118, twice.
  ATLAS_DEVICE static uint32_t scale_pair(uint32_t scales, uint32_t index) {
    return (scales >> 8 * index & 255) * 0x00100010u + 0x75807580u;
  }
  /// Pair `i` of a word: e2m1 times 2^-126.
  ATLAS_DEVICE static uint32_t code_pair(uint32_t word, uint32_t i) {
    constexpr uint32_t kBits = 0x81c081c0u;
    if (i < 3) return word << 3 * i & kBits;
    return (word << 1 & 0x80008000u) | (word >> 5 & 0x01000100u) | (word >> 4 & 0x00c000c0u);
  }
  ATLAS_DEVICE static void pairs(const Unit& unit, uint32_t block, uint32_t, uint32_t* out) {
    ATLAS_UNROLL
    for (uint32_t word = 0; word < kBlockWords; ++word) {
      const uint32_t at = block * kBlockWords + word;
      const uint32_t bits = unit.codes[at / 4].w[at % 4];
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        // Scales of 16 elements: the halves of a word, or of a row's words.
        const uint32_t half = kFamily == MatrixFamily::kMma ? i / 2 : word / 2;
        const uint32_t row = kFamily == MatrixFamily::kMma ? word : 0;
        out[4 * word + i] = device::bf16_pair_multiply(
            code_pair(bits, i), scale_pair(unit.scales[row], 2 * block + half));
      }
    }
  }
  ATLAS_DEVICE static float run_value(const uint8_t*, uint32_t, uint32_t, float sum) { return sum; }
  ATLAS_DEVICE static float finish(const uint8_t* group, uint32_t output, uint32_t, float total) {
    return total * device::load_as<float>(group + 4 * output);
  }
  ATLAS_DEVICE static float element(const uint8_t* group, uint32_t unit, uint32_t block,
                                    uint32_t strand, uint32_t word, uint32_t e, uint32_t) {
    const uint8_t* at = group + kGpuNvfp4Head + uint64_t{unit} * kGpuNvfp4UnitBytes;
    const device::Element place = word_element(kFamily, strand, word, e);
    const auto scales = device::load_as<uint32_t>(at + gpu_nvfp4_scale_offset(kFamily, place.row));
    const auto bits = device::load_as<uint32_t>(
        at + kGpuNvfp4Scales + strand_offset(kFamily, strand, 4 * (block * kBlockWords + word)));
    const uint32_t pair = device::bf16_pair_multiply(code_pair(bits, e / 2),
                                                     scale_pair(scales, 2 * block + place.k / 16));
    const float value = e % 2 == 0 ? device::bf16_low(pair) : device::bf16_high(pair);
    return value * device::load_as<float>(group + 4 * place.row);
  }
};

}  // namespace atlas::kernels
