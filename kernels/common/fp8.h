// The resident layout of FP8 weights: e4m3 numbers with scales for a row, for blocks of 128 x 128,
// or (MXFP8) for 32 elements of a row.
//
// Rows of W come in groups of 16: the scales of all of the group, then its codes, four elements of
// a row side by side: words [k / 4][16], the first in the lowest byte. Missing last bytes are 0.
// Every code keeps its bits.
//
//   kRow:   16 float32, a lane's scale (a matrix with one scale has it sixteen times)
//   kBlock: ceil(k / 128) float32: 16 rows lie in one row of blocks
//   kMx:    [k / 32][16] ue8m0 bytes
// The float32 scales stand there times 2^120. Scales end at a multiple of 64 bytes.
//
// A weight is the float32 nearest to e4m3(code) * scale; its products have the contract "f32"
// (packed_float.h), so they have the bits of a checkpoint that holds these floats.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/codecs.h"
#include "kernels/common/linear.h"

namespace atlas::kernels {

enum class Fp8Scales : uint32_t { kRow, kBlock, kMx };

inline constexpr uint32_t kFp8Block = 128;  // rows and columns of kBlock
inline constexpr uint32_t kMxBlock = 32;    // elements of a row
/// An e4m3 code is read as a float32 (its seven lower bits at bits 20..26), which is 2^120 too
/// small.
inline constexpr float kFp8HeadFactor = 0x1p120f;
/// The largest scale whose head is finite.
inline constexpr float kFp8LargestScale = 0x1p7f;
inline constexpr uint8_t kMxLargestScale = 127 + 7;

/// Bytes of a group before its codes.
constexpr uint64_t fp8_head_bytes(Fp8Scales scales, uint64_t k) {
  uint64_t bytes = 4 * kRowGroup;
  if (scales == Fp8Scales::kBlock) bytes = (k + kFp8Block - 1) / kFp8Block * 4;
  if (scales == Fp8Scales::kMx) bytes = (k + kMxBlock - 1) / kMxBlock * kRowGroup;
  return (bytes + 63) / 64 * 64;
}

/// Resident bytes of one group of rows of `k` elements.
constexpr uint64_t fp8_group_bytes(Fp8Scales scales, uint64_t k) {
  return fp8_head_bytes(scales, k) + (k + 3) / 4 * (4 * kRowGroup);
}

/// Bytes from the first code of a group to element `k` of row `lane`.
constexpr uint64_t fp8_offset(uint32_t lane, uint64_t k) {
  return (k / 4 * kRowGroup + lane) * 4 + k % 4;
}

/// 2^120 times the scale of element `k` of row `lane` of a group.
ATLAS_HOST_DEVICE inline float fp8_head_scale(Fp8Scales scales, const uint8_t* group, uint32_t lane,
                                              uint64_t k) {
  if (scales == Fp8Scales::kMx) {
    return float_from_bits((uint32_t{group[k / kMxBlock * kRowGroup + lane]} + 120u) << 23);
  }
  const uint64_t at = scales == Fp8Scales::kRow ? lane : k / kFp8Block;
  return float_from_bits(load_u32(group + 4 * at));
}

/// Element `i` of row `lane` of a group whose rows have `k` elements.
ATLAS_HOST_DEVICE inline float decode_fp8(Fp8Scales scales, const uint8_t* group, uint32_t lane,
                                          uint64_t i, uint64_t k) {
  const uint8_t code = group[fp8_head_bytes(scales, k) + fp8_offset(lane, i)];
  return 0x1p-120f * e4m3_to_f32(code) * fp8_head_scale(scales, group, lane, i);
}

/// Codes of a checkpoint's rows (a null row reads as zeros) into one group, behind its scales.
inline void pack_fp8_codes(Fp8Scales scales, const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  uint8_t* codes = out + fp8_head_bytes(scales, k);
  if (rows[kRowGroup - 1] == nullptr || k % 4 != 0) {
    std::memset(codes, 0, (k + 3) / 4 * (4 * kRowGroup));
  }
  // Sixty-four elements of a row at a time: whole cache lines of the rows and of the group.
  for (uint64_t begin = 0; begin < k; begin += 64) {
    const uint64_t end = begin + 64 < k ? begin + 64 : k;
    for (uint32_t lane = 0; lane < kRowGroup; ++lane) {
      if (rows[lane] == nullptr) continue;
      uint64_t i = begin;
      for (; i + 4 <= end; i += 4) std::memcpy(codes + fp8_offset(lane, i), rows[lane] + i, 4);
      for (; i < end; ++i) codes[fp8_offset(lane, i)] = rows[lane][i];
    }
  }
}

}  // namespace atlas::kernels
