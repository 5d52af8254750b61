// The resident layout of block-quantized weights: what `pack` of the plugin gguf writes and the
// products and gathers of the CPU pack read.
//
// Rows of W come in groups of 16; everything of a group stands together, in ascending k. The codes
// of 32 elements and 16 rows are vectors of sixteen 32-bit words, lane r for row r: a word has four
// consecutive codes (bytes), or the low nibbles of four codes and, above them, those of the four
// codes 16 elements later. The bits of the codes are those of the checkpoint, in another order; the
// 6-bit scales of Q4_K and Q5_K get a byte each (4.625 and 5.625 bits a weight instead of 4.5
// and 5.5).
//
//   unit     = head, then its sub-blocks of 32 elements; one unit for a block of the checkpoint
//   head     = of blocks of 256: 16 f16 d, and 16 f16 dmin if the format has minima
//   sub      = scales, high bits, codes
//   scales   = kF16: 16 f16 d; kF16Min: 16 f16 d, 16 f16 m; kByteMin: 16 u8 scale, 16 u8 min;
//              kByteHalves: 16 i8 scale of elements 0..15, 16 i8 scale of elements 16..31
//   high     = one word a lane with a bit for each code, or two with two bits for each code: the
//   code
//              at i16b32 position p has bits of half p % 2 (16 bits each); see high_shift
//   codes    = 4 vectors of nibbles or 8 vectors of bytes
#pragma once

#include <cstdint>

#include "kernels/common/codecs.h"
#include "kernels/common/linear.h"

namespace atlas::kernels {

enum class PackedCodes : uint32_t { kNibble, kNibbleHigh1, kNibbleHigh2, kByte };
enum class PackedScales : uint32_t { kF16, kF16Min, kByteMin, kByteHalves };

struct PackedLayout {
  PackedCodes codes;
  PackedScales scales;
  int32_t zero;  // weight = scale * (code - zero) + minimum

  constexpr bool large() const {
    return scales == PackedScales::kByteMin || scales == PackedScales::kByteHalves;
  }
  constexpr bool has_min() const {
    return scales == PackedScales::kF16Min || scales == PackedScales::kByteMin;
  }
  constexpr uint32_t subs() const { return large() ? 8 : 1; }
  constexpr uint32_t block() const { return 32 * subs(); }
  constexpr uint32_t head_bytes() const { return large() ? (has_min() ? 64 : 32) : 0; }
  constexpr uint32_t high_offset() const { return scales == PackedScales::kF16Min ? 64 : 32; }
  constexpr uint32_t high_words() const {
    return codes == PackedCodes::kNibbleHigh1 ? 1 : (codes == PackedCodes::kNibbleHigh2 ? 2 : 0);
  }
  constexpr uint32_t code_words() const { return codes == PackedCodes::kByte ? 8 : 4; }
  constexpr uint32_t codes_offset() const { return high_offset() + 64 * high_words(); }
  constexpr uint32_t sub_bytes() const { return codes_offset() + 64 * code_words(); }
  constexpr uint32_t unit_bytes() const { return head_bytes() + subs() * sub_bytes(); }
  /// Resident bytes of one group of rows of `k` elements, a multiple of block().
  constexpr uint64_t group_bytes(uint64_t k) const { return k / block() * unit_bytes(); }
};

inline constexpr PackedLayout kPackedQ4_0{PackedCodes::kNibble, PackedScales::kF16, 8};
inline constexpr PackedLayout kPackedQ4_1{PackedCodes::kNibble, PackedScales::kF16Min, 0};
inline constexpr PackedLayout kPackedQ5_0{PackedCodes::kNibbleHigh1, PackedScales::kF16, 16};
inline constexpr PackedLayout kPackedQ5_1{PackedCodes::kNibbleHigh1, PackedScales::kF16Min, 0};
inline constexpr PackedLayout kPackedQ8_0{PackedCodes::kByte, PackedScales::kF16, 0};
inline constexpr PackedLayout kPackedQ4_K{PackedCodes::kNibble, PackedScales::kByteMin, 0};
inline constexpr PackedLayout kPackedQ5_K{PackedCodes::kNibbleHigh1, PackedScales::kByteMin, 0};
inline constexpr PackedLayout kPackedQ6_K{PackedCodes::kNibbleHigh2, PackedScales::kByteHalves, 32};
static_assert(kPackedQ4_1.unit_bytes() == 16 * 20 && kPackedQ6_K.unit_bytes() == 16 * 210);

/// Where the high bits of sub-block element `e` stand: word high_word(e), shifted by high_shift(e).
constexpr uint32_t high_word(const PackedLayout& layout, uint32_t e) {
  return layout.high_words() == 2 ? e / 16 : 0;
}
constexpr uint32_t high_shift(const PackedLayout& layout, uint32_t e) {
  return 8 * (e % 4) + (layout.high_words() == 2 ? 2 * (e / 4 % 4) : e / 4);
}

/// Code of element `e` (0..31) and row `lane` of a sub-block.
ATLAS_HOST_DEVICE constexpr int32_t packed_code(const PackedLayout& layout, const uint8_t* sub,
                                                uint32_t lane, uint32_t e) {
  const uint8_t* codes = sub + layout.codes_offset() + 4 * lane;
  if (layout.codes == PackedCodes::kByte) return static_cast<int8_t>(codes[64 * (e / 4) + e % 4]);
  int32_t code = codes[64 * (e % 16 / 4) + e % 4] >> (e < 16 ? 0 : 4) & 15;
  if (layout.high_words() != 0) {
    const uint8_t* high = sub + layout.high_offset() + 64 * high_word(layout, e) + 4 * lane;
    const uint32_t bits = load_u32(high) >> high_shift(layout, e);
    code |= static_cast<int32_t>(bits & (layout.high_words() == 2 ? 3 : 1)) << 4;
  }
  return code;
}

/// Decodes 32 elements of row `lane` from sub-block `b` (of 32 elements along k) of a group: the
/// same floats as the checkpoint's decoder gives.
ATLAS_HOST_DEVICE inline void decode_packed(const PackedLayout& layout, const uint8_t* group,
                                            uint32_t lane, uint32_t b, float* out) {
  const uint8_t* unit = group + b / layout.subs() * layout.unit_bytes();
  const uint8_t* sub = unit + layout.head_bytes() + b % layout.subs() * layout.sub_bytes();
  const uint8_t* floats = layout.large() ? unit : sub;
  const float d = load_f16(floats + 2 * lane);
  const float second = layout.has_min() ? load_f16(floats + 32 + 2 * lane) : 0.0f;
  float scale[2] = {d, d};
  float min = second;
  if (layout.scales == PackedScales::kByteMin) {
    scale[0] = scale[1] = d * static_cast<float>(sub[lane]);
    min = -(second * static_cast<float>(sub[16 + lane]));
  } else if (layout.scales == PackedScales::kByteHalves) {
    scale[0] = d * static_cast<float>(static_cast<int8_t>(sub[lane]));
    scale[1] = d * static_cast<float>(static_cast<int8_t>(sub[16 + lane]));
  }
  for (uint32_t e = 0; e < 32; ++e) {
    const int32_t code = packed_code(layout, sub, lane, e) - layout.zero;
    out[e] = scale[e / 16] * static_cast<float>(code);
    if (layout.has_min()) out[e] += min;
  }
}

}  // namespace atlas::kernels
