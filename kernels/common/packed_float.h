// The resident layout of weights that are floating-point numbers: float32, float16, bfloat16.
//
// Rows of W come in groups of 16, element k of all 16 together. kF32: [k][16] float32. kF16:
// [k][16] float16. kBF16: words [k / 2][16], element k in the low half if k is even, else in the
// high half; a last missing half is 0. Every number keeps its bits.
//
// Contract "f32": float32 activations; fixed segments of 256 along k, each with two sums from zero,
// of its even and of its odd elements, by fma in ascending k; then
//   total = total + (even + odd), segments ascending, from total 0.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/codecs.h"
#include "kernels/common/linear.h"

namespace atlas::kernels {

inline constexpr char kF32Contract[] = "f32";
inline constexpr uint32_t kF32Segment = 256;

enum class FloatLayout : uint32_t { kF32, kF16, kBF16 };

/// Bytes of one element in the checkpoint.
constexpr uint32_t float_bytes(FloatLayout layout) { return layout == FloatLayout::kF32 ? 4 : 2; }

/// Resident bytes of one group of rows of `k` elements.
constexpr uint64_t float_group_bytes(FloatLayout layout, uint64_t k) {
  const uint64_t elements = layout == FloatLayout::kBF16 ? (k + 1) / 2 * 2 : k;
  return elements * float_bytes(layout) * kRowGroup;
}

/// Bytes from the start of a group to element `k` of row `lane`.
constexpr uint64_t float_offset(FloatLayout layout, uint32_t lane, uint64_t k) {
  if (layout == FloatLayout::kBF16) return (k / 2 * kRowGroup + lane) * 4 + k % 2 * 2;
  return (k * kRowGroup + lane) * float_bytes(layout);
}

/// Element `k` of row `lane` of a group.
ATLAS_HOST_DEVICE inline float decode_float(FloatLayout layout, const uint8_t* group, uint32_t lane,
                                            uint64_t k) {
  const uint8_t* at = group + float_offset(layout, lane, k);
  if (layout == FloatLayout::kF32) return float_from_bits(load_u32(at));
  return layout == FloatLayout::kF16 ? load_f16(at) : bf16_to_f32(load_u16(at));
}

/// Rows of a checkpoint (a null row reads as zeros) into one group.
inline void pack_floats(FloatLayout layout, const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  const uint64_t bytes = float_bytes(layout);
  if (rows[kRowGroup - 1] == nullptr || layout == FloatLayout::kBF16) {
    std::memset(out, 0, float_group_bytes(layout, k));
  }
  // Sixteen elements of a row at a time: whole cache lines of the rows and of the group.
  for (uint64_t begin = 0; begin < k; begin += 16) {
    const uint64_t end = begin + 16 < k ? begin + 16 : k;
    for (uint32_t lane = 0; lane < kRowGroup; ++lane) {
      if (rows[lane] == nullptr) continue;
      for (uint64_t i = begin; i < end; ++i) {
        std::memcpy(out + float_offset(layout, lane, i), rows[lane] + i * bytes, bytes);
      }
    }
  }
}

}  // namespace atlas::kernels
