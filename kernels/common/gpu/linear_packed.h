// Products with block-quantized weights (gpu_packed.h), contract "bf16_k16_blocks": integer codes
// are exact in bf16; the sum of a block is multiplied with its float32 scale, and a minimum with
// the sum of the block's activations.
#pragma once

#include "kernels/common/gpu/product_grouped.h"
#include "kernels/common/gpu_packed.h"

namespace atlas::kernels {

/// kWords words, aligned to all of them or to 16 bytes.
template <uint32_t kWords, class From>
ATLAS_DEVICE void load_words(From& from, const uint8_t* at, uint32_t* to) {
  static_assert(kWords == 1 || kWords == 2 || kWords % 4 == 0);
  if constexpr (kWords == 1) {
    to[0] = from.one(at);
  } else if constexpr (kWords == 2) {
    const device::Words2 two = from.two(at);
    to[0] = two.w[0];
    to[1] = two.w[1];
  } else {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kWords; i += 4) {
      const device::Words4 four = from.four(at + 4 * i);
      ATLAS_UNROLL
      for (uint32_t j = 0; j < 4; ++j) to[i + j] = four.w[j];
    }
  }
}

template <PackedCodes kCodes, PackedScales kScales, int32_t kZero>
struct PackedFormatOf {
  static constexpr GpuPacked kPacked{{kCodes, kScales, kZero}};
  static constexpr bool kBytes = kCodes == PackedCodes::kByte;
  static constexpr uint32_t kUnit = kPacked.unit();
  static constexpr uint32_t kRun = kBf16Run;
  static constexpr uint32_t kAhead = 2;
  static constexpr bool kHeadScales = false, kRunScales = false, kDivides = false;
  static constexpr uint32_t kManyTiles = many_tiles(kFamily, kPacked.wide());
  static constexpr bool kF16 = false, kMinima = kPacked.layout.has_min();
  static constexpr uint32_t kParts = 1, kFold = kScales == PackedScales::kByteHalves ? 16 : 32;
  static constexpr uint32_t kUnitWords = kPacked.blocks() * kBlockWords;
  static constexpr uint32_t kPieces = kUnitWords / (kBytes ? 2 : 4);
  static constexpr uint32_t kHigh = kPacked.high_bits();
  static constexpr uint32_t kRecord = kPacked.record(), kHead = kPacked.head_record();
  static constexpr uint32_t kHighWords = kHigh == 0 ? 1 : kUnitWords * kHigh / 4;
  static constexpr uint32_t kRecordWords = kLaneRows * kRecord / 4;
  static constexpr uint32_t kHeadWords = kHead == 0 ? 1 : kLaneRows * kHead / 4;
  static constexpr uint32_t kLaneBytes =
      16 * kPieces +
      4 * (kRecordWords + (kHigh == 0 ? 0 : kHighWords) + (kHead == 0 ? 0 : kHeadWords));

  // Numbers of their own: calls on kPacked itself would make it a variable of the device.
  static constexpr uint32_t kBlockRecord = kPacked.block_record();
  static constexpr uint32_t kUnitBytes = kPacked.unit_bytes(), kHeadBytes = kPacked.head_bytes();
  static constexpr uint32_t kHighOffset = kPacked.high_offset();
  static constexpr uint32_t kCodesOffset = kPacked.codes_offset();

  struct Unit {
    device::Words4 codes[kPieces];
    uint32_t high[kHighWords], records[kRecordWords], head[kHeadWords];
  };

  ATLAS_DEVICE static uint64_t unit_offset(uint32_t unit) {
    if (kHead == 0) return uint64_t{unit} * kUnitBytes;
    return head_offset(unit) + kHeadBytes + unit % 4 * kUnitBytes;
  }
  ATLAS_DEVICE static uint64_t head_offset(uint32_t unit) {
    return uint64_t{unit / 4} * (kHeadBytes + 4 * kUnitBytes);
  }
  ATLAS_DEVICE static uint64_t group_bytes(uint32_t k) {
    const uint32_t units = (k + kUnit - 1) / kUnit;
    return kHead == 0 ? uint64_t{units} * kUnitBytes : head_offset(units);
  }
  /// Where a unit stands: heads are not at the same distance of all.
  struct Place {
    const uint8_t* group;
    uint32_t unit;
  };
  ATLAS_DEVICE static Place place(const uint8_t* group, uint32_t unit, uint32_t) {
    return {group, unit};
  }
  ATLAS_DEVICE static Unit load(const uint8_t* group, uint32_t unit, uint32_t k) {
    FromMemory memory;
    return load_from(memory, place(group, unit, k), 0);
  }
  template <class From>
  ATLAS_DEVICE static Unit load_from(From& from, const Place& first, uint32_t behind) {
    const uint8_t* group = first.group;
    const uint32_t unit = first.unit + behind;
    const uint8_t* at = group + unit_offset(unit);
    // The lane's rows stand side by side, from this one on.
    const uint32_t place =
        row_place(kFamily, kFamily == MatrixFamily::kMma ? device::lane_index() / 4
                                                         : device::lane_index() / 16);
    Unit out;
    out.high[0] = out.head[0] = 0;
    if constexpr (kHead != 0) {
      load_words<kHeadWords>(from, group + head_offset(unit) + place * kHead, out.head);
    }
    load_words<kRecordWords>(from, at + place * kRecord, out.records);
    if constexpr (kHigh != 0) {
      load_words<kHighWords>(from, at + kHighOffset + strand_index() * (4 * kHighWords), out.high);
    }
    const uint8_t* codes = strand_at(at + kCodesOffset);
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) {
      out.codes[i] = from.four(codes + i * kPieceStep);
    }
    return out;
  }

  /// A pair of codes 0..127 as bf16, less kZero.
  ATLAS_DEVICE static uint32_t code_pair(uint32_t codes) {
    // 128 + code in bf16, whose last place is 1; then -(128 + kZero).
    constexpr uint32_t kLess = 0xc300u + kZero;
    return device::bf16_pair_add(codes | 0x43004300u, kLess | kLess << 16);
  }
  /// Signed bytes in the upper halves of a word's halves as bf16: the low four bits, and 16 times
  /// the high ones.
  ATLAS_DEVICE static uint32_t byte_pair(uint32_t bytes) {
    const uint32_t codes = bytes ^ 0x80008000u;                       // less 128
    const uint32_t low = (codes >> 8 & 0x000f000fu) | 0x43004300u;    // 128 + low
    const uint32_t high = (codes >> 12 & 0x000f000fu) | 0x45004500u;  // 2048 + 16 high
    return device::bf16_pair_add(device::bf16_pair_add(low, 0xc300c300u),
                                 device::bf16_pair_add(high, 0xc508c508u));  // -128, -2176
  }
  ATLAS_DEVICE static uint32_t high_pair(const Unit& unit, uint32_t word, uint32_t i) {
    if constexpr (kHigh == 1) {
      const uint32_t bits = unit.high[word / 4] >> 8 * (word % 4) & 255;
      return ((bits | bits << 12) >> i & 0x00010001u) << 4;
    } else if constexpr (kHigh == 2) {
      const uint32_t bits = unit.high[word / 2] >> 16 * (word % 2) & 0xffff;
      return (((bits & 0xff) | (bits & 0xff00) << 8) >> 2 * i & 0x00030003u) << 4;
    }
    return 0;
  }
  ATLAS_DEVICE static void pairs(const Unit& unit, uint32_t block, uint32_t, uint32_t* out) {
    ATLAS_UNROLL
    for (uint32_t w = 0; w < kBlockWords; ++w) {
      const uint32_t at = block * kBlockWords + w;
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        if constexpr (kBytes) {
          const uint32_t four = unit.codes[at / 2].w[at % 2 * 2 + i / 2];
          out[4 * w + i] = byte_pair(i % 2 == 0 ? four : four << 8);
        } else {
          const uint32_t nibbles = unit.codes[at / 4].w[at % 4] >> 4 * i & 0x000f000fu;
          out[4 * w + i] = code_pair(nibbles | high_pair(unit, at, i));
        }
      }
    }
  }

  ATLAS_DEVICE static float half_at(const uint32_t* words, uint32_t at) {
    return device::f16_value(device::forgotten(words[at / 2]) >> 16 * (at % 2) & 0xffff);
  }
  ATLAS_DEVICE static uint32_t byte_at(const uint32_t* words, uint32_t at) {
    return device::forgotten(words[at / 4]) >> 8 * (at % 4) & 255;
  }
  /// Scale and minimum out of a lane's (or, for one row, i = 0) records.
  ATLAS_DEVICE static float scale_of(const uint32_t* records, const uint32_t* head, uint32_t block,
                                     uint32_t half, uint32_t i) {
    if constexpr (kScales == PackedScales::kByteMin) {
      return half_at(head, 2 * i) * static_cast<float>(byte_at(records, i * kRecord + 2 * block));
    } else if constexpr (kScales == PackedScales::kByteHalves) {
      return half_at(head, i) * static_cast<float>(static_cast<int8_t>(
                                    byte_at(records, i * kRecord + 2 * block + half)));
    } else {
      return half_at(records, i * (kRecord / 2) + block * (kBlockRecord / 2));
    }
  }
  ATLAS_DEVICE static float minimum_of(const uint32_t* records, const uint32_t* head,
                                       uint32_t block, uint32_t i) {
    if constexpr (kScales == PackedScales::kByteMin) {
      return -(half_at(head, 2 * i + 1) *
               static_cast<float>(byte_at(records, i * kRecord + 2 * block + 1)));
    } else {
      return half_at(records, i * (kRecord / 2) + block * (kBlockRecord / 2) + 1);
    }
  }
  ATLAS_DEVICE static float scale(const Unit& unit, uint32_t block, uint32_t half, uint32_t i) {
    return scale_of(unit.records, unit.head, block, half, i);
  }
  ATLAS_DEVICE static float minimum(const Unit& unit, uint32_t block, uint32_t i) {
    return minimum_of(unit.records, unit.head, block, i);
  }
  ATLAS_DEVICE static float run_value(const uint8_t*, uint32_t, uint32_t, float sum) { return sum; }
  ATLAS_DEVICE static float finish(const uint8_t*, uint32_t, uint32_t, float total) {
    return total;
  }

  ATLAS_DEVICE static float element(const uint8_t* group, uint32_t unit, uint32_t block,
                                    uint32_t strand, uint32_t word, uint32_t e, uint32_t) {
    const uint8_t* at = group + unit_offset(unit);
    const device::Element row = word_element(kFamily, strand, word, e);
    const uint32_t place = row_place(kFamily, row.row), w = block * kBlockWords + word;
    // One row's record and head, by halves of a word: records may have two bytes only.
    uint32_t records[(kRecord + 3) / 4] = {}, head[1] = {};
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kRecord / 2; ++i) {
      const uint32_t bits = device::load_as<uint16_t>(at + place * kRecord + 2 * i);
      records[i / 2] |= bits << 16 * (i % 2);
    }
    if constexpr (kHead != 0) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kHead / 2; ++i) {
        const uint32_t bits =
            device::load_as<uint16_t>(group + head_offset(unit) + place * kHead + 2 * i);
        head[0] |= bits << 16 * i;
      }
    }
    const uint8_t* codes = at + kCodesOffset;
    int32_t code;
    if constexpr (kBytes) {
      code = static_cast<int8_t>(device::load_as<uint8_t>(
          codes + strand_offset(kFamily, strand, 8 * w + e / 4 * 4 + gpu_byte_place(e % 4))));
    } else {
      const uint32_t place_of = e / 2 + 4 * (e % 2);
      uint32_t bits =
          device::load_as<uint32_t>(codes + strand_offset(kFamily, strand, 4 * w)) >> 4 * place_of &
          15;
      const uint8_t* high = at + kHighOffset + (strand * kUnitWords + w) * kHigh;
      if constexpr (kHigh == 1) bits |= (device::load_as<uint8_t>(high) >> place_of & 1) << 4;
      if constexpr (kHigh == 2) bits |= (device::load_as<uint16_t>(high) >> 2 * place_of & 3) << 4;
      code = static_cast<int32_t>(bits) - kZero;
    }
    const float value = scale_of(records, head, block, row.k / 16, 0) * static_cast<float>(code);
    if constexpr (kMinima) return value + minimum_of(records, head, block, 0);
    return value;
  }
};

#define ATLAS_PACKED_KERNELS(name, NAME)                                             \
  using Format##NAME =                                                               \
      PackedFormatOf<kPacked##NAME.codes, kPacked##NAME.scales, kPacked##NAME.zero>; \
  ATLAS_PRODUCT_KERNELS(name, Format##NAME)

}  // namespace atlas::kernels
