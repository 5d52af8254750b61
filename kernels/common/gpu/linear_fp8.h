// Products with FP8 weights (gpu_fp8.h). e4m3 is exact in bf16; scales are float32, of an output's
// total ("bf16_k16_s256"), of runs of 128 elements ("bf16_k16_s128"), or of blocks of 32
// ("bf16_k16_blocks").
#pragma once

#include "kernels/common/gpu/product_grouped.h"
#include "kernels/common/gpu_fp8.h"

namespace atlas::kernels {

template <Fp8Scales kScales>
struct Fp8Format {
  static constexpr bool kBlock = kScales == Fp8Scales::kBlock, kMx = kScales == Fp8Scales::kMx;
  static constexpr uint32_t kUnit = kGpuFp8Unit;
  static constexpr uint32_t kRun = kBlock ? kFp8Block : kBf16Run;
  static constexpr uint32_t kAhead = 2;
  static constexpr bool kHeadScales = kScales == Fp8Scales::kRow, kRunScales = kBlock;
  static constexpr bool kDivides = false;
  static constexpr uint32_t kManyTiles = many_tiles(kFamily, gpu_fp8_wide(kScales));
  static constexpr bool kF16 = false, kMinima = false;
  static constexpr uint32_t kParts = 1, kFold = kMx ? 32 : 0;
  static constexpr uint32_t kPieces = kBlockWords / 2;
  static constexpr uint32_t kScaleWords = kMx ? (kLaneRows + 3) / 4 : 1;
  static constexpr uint32_t kLaneBytes = 16 * kPieces + (kMx ? 4 * kScaleWords : 0);

  struct Unit {
    device::Words4 codes[kPieces];
    uint32_t scales[kScaleWords];  // kMx: a byte for each row of the lane
  };

  static constexpr uint32_t kUnitBytes = kGpuFp8UnitBytes;
  ATLAS_DEVICE static uint32_t head_bytes(uint32_t k) {
    uint32_t bytes = 4 * kTileOutputs;
    if (kBlock) bytes = (k + kFp8Block - 1) / kFp8Block * 4;
    if (kMx) bytes = (k + kMxBlock - 1) / kMxBlock * kTileOutputs;
    return (bytes + 63) / 64 * 64;
  }
  ATLAS_DEVICE static uint64_t group_bytes(uint32_t k) {
    return head_bytes(k) + uint64_t{(k + kUnit - 1) / kUnit} * kGpuFp8UnitBytes;
  }
  /// Where the lane's bytes of a unit stand, and with kMx its scales.
  struct Place {
    const uint8_t *codes, *scales;
  };
  ATLAS_DEVICE static Place place(const uint8_t* group, uint32_t unit, uint32_t k) {
    return {
        strand_at(group + head_bytes(k) + uint64_t{unit} * kGpuFp8UnitBytes),
        group + unit * kTileOutputs +
            (kLaneRows == 2 ? 2 * (device::lane_index() / 4) : 8 * (device::lane_index() / 16))};
  }
  ATLAS_DEVICE static Place staged(const uint8_t* units) {
    return {units + 16 * device::lane_index(), nullptr};
  }
  ATLAS_DEVICE static Unit load(const uint8_t* group, uint32_t unit, uint32_t k) {
    FromMemory memory;
    return load_from(memory, place(group, unit, k), 0);
  }
  template <class From>
  ATLAS_DEVICE static Unit load_from(From& from, const Place& first, uint32_t unit) {
    Unit out;
    out.scales[0] = 0;
    if constexpr (kMx) {
      const uint8_t* scales = first.scales + unit * kTileOutputs;
      if constexpr (kLaneRows == 2) {
        out.scales[0] = from.half(scales);
      } else {
        const device::Words2 words = from.two(scales);
        out.scales[0] = words.w[0];
        out.scales[1] = words.w[1];
      }
    }
    const uint8_t* codes = first.codes + unit * kGpuFp8UnitBytes;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) out.codes[i] = from.four(codes + i * kPieceStep);
    return out;
  }

  /// Codes in the upper bytes of halves, as bf16.
  ATLAS_DEVICE static uint32_t code_pair(uint32_t bytes) {
    const uint32_t small = (bytes & 0x80008000u) | (bytes & 0x7f007f00u) >> 4;
    return device::bf16_pair_multiply(small, 0x7b807b80u);  // 2^120
  }
  ATLAS_DEVICE static void pairs(const Unit& unit, uint32_t, uint32_t, uint32_t* out) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 2 * kBlockWords; ++i) {
      const uint32_t four = unit.codes[i / 4].w[i % 4];
      out[2 * i] = code_pair(four);
      out[2 * i + 1] = code_pair(four << 8);
    }
  }
  ATLAS_DEVICE static float scale(const Unit& unit, uint32_t, uint32_t, uint32_t i) {
    return device::ue8m0_value(unit.scales[i / 4] >> 8 * (i % 4) & 255);
  }
  ATLAS_DEVICE static float run_value(const uint8_t* group, uint32_t run, uint32_t, float sum) {
    return kBlock ? device::load_as<float>(group + 4 * run) * sum : sum;
  }
  ATLAS_DEVICE static float finish(const uint8_t* group, uint32_t output, uint32_t, float total) {
    if (kBlock || kMx) return total;
    return total * device::load_as<float>(group + 4 * output);
  }
  ATLAS_DEVICE static float element(const uint8_t* group, uint32_t unit, uint32_t, uint32_t strand,
                                    uint32_t word, uint32_t e, uint32_t k) {
    const device::Element place = word_element(kFamily, strand, word, e);
    const uint32_t code = device::load_as<uint8_t>(
        group + head_bytes(k) + uint64_t{unit} * kGpuFp8UnitBytes +
        strand_offset(kFamily, strand, 8 * word + e / 4 * 4 + gpu_byte_place(e % 4)));
    float scale;
    if constexpr (kMx) {
      scale = device::ue8m0_value(
          device::load_as<uint8_t>(group + unit * kTileOutputs + row_place(kFamily, place.row)));
    } else {
      scale = device::load_as<float>(group + 4 * (kBlock ? unit / 4 : place.row));
    }
    return device::e4m3_value(code) * scale;
  }
};

}  // namespace atlas::kernels
