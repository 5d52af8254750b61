// The resident layout of NVFP4 weights, and the contract of their products: 4-bit e2m1 numbers, an
// e4m3 scale for each 16 of a row, and one float32 scale for a whole matrix.
//
// Rows of W come in groups of 16, in units of 64 elements along k (a last unit that is not full
// goes on with zeros). Codes are words as in packed.h: the low nibbles of four consecutive codes
// and, above them, those of the four codes 16 elements later.
//
//   group = 16 float32 (a lane's matrix scale, times 2^-9), then its units
//   unit  = scales of elements 0..15 of 16 lanes (bytes), of 16..31, 32..47, 48..63; then the codes
//           of elements 0..31 (4 vectors of sixteen words), then those of 32..63
//
// The matrix scale is a lane's, so matrices with different ones (gate and up of an expert) may lie
// side by side in one weight.
//
// Contract "i16b32" for this format: with D the exact integer sum of 512 e2m1(code) * x code over
// 16 elements (below 2^31, and 2^8 times less than 2^24, so it is exact in float32 too),
//   sum = fma(e4m3(scale) * x.scale, float(D), sum), ascending, from 0;  y = sum * (2^-9 * matrix).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/codecs.h"
#include "kernels/common/linear.h"

namespace atlas::kernels {

inline constexpr uint32_t kNvfp4Block = 16;  // elements that share a scale
inline constexpr uint32_t kNvfp4Unit = 64;   // elements
inline constexpr uint32_t kNvfp4HeadBytes = 64;
inline constexpr uint32_t kNvfp4ScaleBytes = 64;  // of a unit, before its codes
inline constexpr uint32_t kNvfp4UnitBytes = kNvfp4ScaleBytes + kRowGroup * kNvfp4Unit / 2;
inline constexpr float kNvfp4HeadFactor = 0x1p-9f;

/// 2 * e2m1(code), a byte each; times 256 they are the contract's integers.
alignas(16) inline constexpr int8_t kNvfp4Twice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                       0, -1, -2, -3, -4, -6, -8, -12};

/// Resident bytes of one group of rows of `k` elements.
constexpr uint64_t nvfp4_group_bytes(uint64_t k) {
  return kNvfp4HeadBytes + (k / kNvfp4Unit + (k % kNvfp4Unit != 0 ? 1 : 0)) * kNvfp4UnitBytes;
}

/// Bytes from the start of a group to the scale of elements 16 b .. 16 b + 15 of row `lane`.
constexpr uint64_t nvfp4_scale_offset(uint32_t lane, uint64_t b) {
  return kNvfp4HeadBytes + b / 4 * kNvfp4UnitBytes + b % 4 * kRowGroup + lane;
}
/// To the word with the codes of elements 32 b + 4 i ..+3 and 32 b + 16 + 4 i ..+3, i below 4.
constexpr uint64_t nvfp4_word_offset(uint32_t lane, uint64_t b, uint32_t i) {
  return kNvfp4HeadBytes + b / 2 * kNvfp4UnitBytes + kNvfp4ScaleBytes +
         (b % 2 * 4 + i) * (4 * kRowGroup) + 4 * lane;
}

/// Element `i` of row `lane` of a group: e2m1 * e4m3 * matrix scale, with one rounding.
ATLAS_HOST_DEVICE inline float decode_nvfp4(const uint8_t* group, uint32_t lane, uint64_t i) {
  const uint8_t byte = group[nvfp4_word_offset(lane, i / 32, i % 16 / 4) + i % 4];
  const uint8_t code = i % 32 < 16 ? byte & 15 : byte >> 4;
  const float scale = e4m3_to_f32(group[nvfp4_scale_offset(lane, i / kNvfp4Block)]);
  return 512.0f * e2m1_to_f32(code) * scale * float_from_bits(load_u32(group + 4 * lane));
}

/// Four nibbles, the lowest first, to the low nibbles of four bytes.
constexpr uint32_t nvfp4_spread(uint32_t nibbles) {
  return (nibbles & 0x000f) | (nibbles & 0x00f0) << 4 | (nibbles & 0x0f00) << 8 |
         (nibbles & 0xf000) << 12;
}

/// Rows of a checkpoint into one group: codes[r] has k / 2 bytes, of two codes each, the low nibble
/// first; scales[r] has k / 16 bytes. `k` is a multiple of 16; a null row reads as zeros.
inline void pack_nvfp4(const uint8_t* const* codes, const uint8_t* const* scales,
                       float matrix_scale, uint64_t k, uint8_t* out) {
  if (codes[kRowGroup - 1] == nullptr || k % kNvfp4Unit != 0) {
    std::memset(out, 0, nvfp4_group_bytes(k));
  }
  const float head = matrix_scale * kNvfp4HeadFactor;
  for (uint32_t lane = 0; lane < kRowGroup; ++lane)
    std::memcpy(out + 4 * lane, &head, sizeof(head));
  for (uint64_t b = 0; b < k / 32 + (k % 32 != 0 ? 1 : 0); ++b) {
    const bool whole = 32 * b + 32 <= k;
    for (uint32_t lane = 0; lane < kRowGroup; ++lane) {
      if (codes[lane] == nullptr) continue;
      out[nvfp4_scale_offset(lane, 2 * b)] = scales[lane][2 * b];
      if (whole) out[nvfp4_scale_offset(lane, 2 * b + 1)] = scales[lane][2 * b + 1];
      const uint8_t* from = codes[lane] + 16 * b;
      for (uint32_t i = 0; i < 4; ++i) {
        uint32_t word = nvfp4_spread(load_u16(from + 2 * i));
        if (whole) word |= nvfp4_spread(load_u16(from + 8 + 2 * i)) << 4;
        std::memcpy(out + nvfp4_word_offset(lane, b, i), &word, sizeof(word));
      }
    }
  }
}

}  // namespace atlas::kernels
