// The resident layout of FP8 weights on GPUs (gpu_weights.h says what strands and words are).
//
//   group = scales, as fp8.h counts their bytes; then units of 32 elements, 512 bytes of codes
//   kRow:   16 float32;  kBlock: ceil(k / 128) float32;  kMx: 16 ue8m0 bytes a unit, in the order
//           of row_place
// A word of 8 codes is two times four bytes, and the bytes of four stand in the order 2, 0, 3, 1:
// so a pair of neighbours lies in the upper bytes of halves, or in the lower.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/fp8.h"
#include "kernels/common/gpu_weights.h"

namespace atlas::kernels {

inline constexpr uint32_t kGpuFp8Unit = kBlockElements;
inline constexpr uint32_t kGpuFp8UnitBytes = kTileOutputs * kGpuFp8Unit;
/// Contract of "fp8_b128": runs of 128 elements, each times its scale, rounded to float32.
inline constexpr char kBf16Block128Contract[] = "bf16_k16_s128";
/// Contract of formats whose blocks of 16 or 32 elements have a scale: run = fma(scale, sum of the
/// block, run), then fma(minimum, sum of x in the block of 32, run); runs of 256.
inline constexpr char kBf16BlocksContract[] = "bf16_k16_blocks";

constexpr uint64_t gpu_fp8_group_bytes(Fp8Scales scales, uint64_t k) {
  return fp8_head_bytes(scales, k) + whole_units(k, kGpuFp8Unit) * kGpuFp8UnitBytes;
}
/// gpu_products.h's many_tiles.
constexpr bool gpu_fp8_wide(Fp8Scales scales) { return scales == Fp8Scales::kMx; }

/// Where element `e` of four stands among their bytes.
constexpr uint32_t gpu_byte_place(uint32_t e) { return e % 2 * 2 + (e < 2 ? 1 : 0); }

/// Elements of a byte each (`k` of a row, null: zeros) into the codes of a group's units,
/// `stride` bytes from one to the next. For FP8 and for 8-bit integers.
inline void pack_gpu_bytes(MatrixFamily family, const uint8_t* const* rows, uint64_t k,
                           uint64_t stride, uint8_t* out) {
  for (uint64_t begin = 0; begin < k; begin += kBlockElements, out += stride) {
    for (uint32_t strand = 0; strand < strands(family); ++strand) {
      for (uint32_t word = 0; word < block_words(family); ++word) {
        for (uint32_t e = 0; e < kWordElements; ++e) {
          const device::Element at = word_element(family, strand, word, e);
          const bool there = rows[at.row] != nullptr && begin + at.k < k;
          out[strand_offset(family, strand, 8 * word + e / 4 * 4 + gpu_byte_place(e % 4))] =
              there ? rows[at.row][begin + at.k] : uint8_t{0};
        }
      }
    }
  }
}

/// The scales of row `row` of a group: `count` float32, from its only one to one for 32 elements
/// (powers of two then). kBlock's stand for all rows of the group.
inline void store_gpu_fp8_scales(MatrixFamily family, Fp8Scales kind, uint32_t row,
                                 const float* scales, uint64_t count, uint8_t* out) {
  for (uint64_t i = 0; i < count; ++i) {
    if (kind == Fp8Scales::kMx) {
      uint32_t bits;
      std::memcpy(&bits, scales + i, 4);
      // 2^-127 has no exponent bits; its code is 0.
      out[i * kTileOutputs + row_place(family, row)] = static_cast<uint8_t>(bits >> 23);
    } else {
      std::memcpy(out + 4 * (kind == Fp8Scales::kRow ? row : i), scales + i, 4);
    }
  }
}

inline void pack_gpu_fp8_codes(MatrixFamily family, Fp8Scales scales, const uint8_t* const* rows,
                               uint64_t k, uint8_t* out) {
  pack_gpu_bytes(family, rows, k, kGpuFp8UnitBytes, out + fp8_head_bytes(scales, k));
}

}  // namespace atlas::kernels
