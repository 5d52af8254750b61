// The resident layout of NVFP4 weights on GPUs (gpu_weights.h says what strands and words are).
//
//   group = 16 float32 (a row's matrix scale, times 2^8), then units of 64 elements
//   unit  = 64 bytes of scales, four a row (of elements 0..15, 16..31, ...); 512 bytes of codes
//
// A scale is e4m3 with its subnormals written as normal numbers: 5 bits of exponent, 3 of mantissa,
// 2^(exponent - 10) (1 + mantissa / 8). So one multiply-add of integers makes it a pair of bf16.
// Elements whose scale is 0 have codes 0. The four bits of a code stand in a word where a shift
// brings them to the places of bf16's sign and lowest exponent bits (nvfp4_place).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/gpu_weights.h"
#include "kernels/common/nvfp4.h"

namespace atlas::kernels {

inline constexpr uint32_t kGpuNvfp4Unit = 64;
inline constexpr uint32_t kGpuNvfp4Head = 4 * kTileOutputs;
inline constexpr uint32_t kGpuNvfp4Scales = 4 * kTileOutputs;
inline constexpr uint32_t kGpuNvfp4UnitBytes = kGpuNvfp4Scales + kTileOutputs * kGpuNvfp4Unit / 2;
/// Codes times scales come out of the kernel 2^8 too small.
inline constexpr float kGpuNvfp4HeadFactor = 0x1p8f;

constexpr uint64_t gpu_nvfp4_group_bytes(uint64_t k) {
  return kGpuNvfp4Head + whole_units(k, kGpuNvfp4Unit) * kGpuNvfp4UnitBytes;
}
/// Of the four scales of a row, in its unit.
constexpr uint32_t gpu_nvfp4_scale_offset(MatrixFamily family, uint32_t row) {
  return 4 * (family == MatrixFamily::kMma ? row_place(family, row) : row);
}

/// Bits of a code as the lower element of pair `pair` of a word; the higher one is 16 bits up.
/// Pairs 0 to 2 are moved by 0, 3 and 6 bits to the left, pair 3 has its bits where they leave
/// room.
constexpr uint32_t nvfp4_place(uint32_t pair, uint32_t code) {
  const uint32_t sign = code >> 3, magnitude = code & 7;
  if (pair < 3) return (sign << 15 | magnitude << 6) >> 3 * pair;
  return sign << 14 | (magnitude >> 2) << 13 | (magnitude & 3) << 10;
}
constexpr bool nvfp4_places_differ() {
  uint32_t all = 0;
  for (uint32_t pair = 0; pair < 4; ++pair) {
    if ((all & nvfp4_place(pair, 15)) != 0) return false;
    all |= nvfp4_place(pair, 15);
  }
  return all == 0xffff;
}
static_assert(nvfp4_places_differ());

/// An e4m3 scale (not negative, no NaN) as the layout has it; 0 stays 0.
constexpr uint8_t gpu_nvfp4_scale(uint8_t e4m3) {
  uint32_t exponent = e4m3 >> 3, mantissa = e4m3 & 7;
  if (exponent != 0) return static_cast<uint8_t>((exponent + 3) << 3 | mantissa);
  if (mantissa == 0) return 0;
  exponent = 4;
  while (mantissa < 8) {
    mantissa *= 2;
    --exponent;
  }
  return static_cast<uint8_t>(exponent << 3 | (mantissa & 7));
}

/// Sixteen rows into one group, as pack_nvfp4: codes[r] has k / 2 bytes, scales[r] k / 16; a null
/// row reads as zeros. `k` is a multiple of 16.
inline void pack_gpu_nvfp4(MatrixFamily family, const uint8_t* const* codes,
                           const uint8_t* const* scales, float matrix_scale, uint64_t k,
                           uint8_t* out) {
  std::memset(out, 0, gpu_nvfp4_group_bytes(k));
  const float head = matrix_scale * kGpuNvfp4HeadFactor;
  for (uint32_t row = 0; row < kTileOutputs; ++row) std::memcpy(out + 4 * row, &head, 4);
  out += kGpuNvfp4Head;
  for (uint64_t unit = 0; unit < whole_units(k, kGpuNvfp4Unit); ++unit, out += kGpuNvfp4UnitBytes) {
    for (uint32_t row = 0; row < kTileOutputs; ++row) {
      for (uint64_t s = 0; codes[row] != nullptr && s < 4 && 64 * unit + 16 * s < k; ++s) {
        out[gpu_nvfp4_scale_offset(family, row) + s] = gpu_nvfp4_scale(scales[row][4 * unit + s]);
      }
    }
    const uint32_t words = block_words(family);
    for (uint32_t strand = 0; strand < strands(family); ++strand) {
      for (uint32_t i = 0; i < 2 * words; ++i) {
        uint32_t word = 0;
        for (uint32_t e = 0; e < kWordElements; ++e) {
          const device::Element at = word_element(family, strand, i % words, e);
          const uint64_t element = 64 * unit + i / words * kBlockElements + at.k;
          if (codes[at.row] == nullptr || element >= k || scales[at.row][element / 16] == 0)
            continue;
          const uint32_t code = codes[at.row][element / 2] >> 4 * (element % 2) & 15;
          word |= nvfp4_place(e / 2, code) << 16 * (e % 2);
        }
        std::memcpy(out + kGpuNvfp4Scales + strand_offset(family, strand, 4 * i), &word, 4);
      }
    }
  }
}

}  // namespace atlas::kernels
