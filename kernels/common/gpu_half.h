// bf16 and f16 weights on GPUs for products whose rows a norm has made (AtlasWeightQuery): both are
// multiplied as f16, three binary digits more than bf16 has, at the same cost. A norm bounds its
// rows by sqrt(k) times its gain, far inside of f16's range, which other rows need not keep to.
//
//   group = 16 float32, a power of two for each row of W; the units of gpu_float.h with f16
//   numbers, a row's divided by its power, so that the largest is in [2^14, 2^15); its counter
// So no bf16 number changes that is at least 2^-31 of the largest in its row; smaller ones are
// rounded to multiples of 2^-38 or 2^-39 of it. f16 weights stand as they are.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/common/gpu_float.h"
#include "kernels/common/gpu_wgmma.h"

namespace atlas::kernels {

/// bf16_k16_s256 (gpu_weights.h) of numbers in f16.
inline constexpr char kHalfContract[] = "f16_k16_s256";
/// Input encodings "bf16_b32" and "bf16_w64" of numbers in f16; what is too large for it becomes
/// the largest number.
inline constexpr char kHalfEncoding[] = "f16_b32";
inline constexpr char kEncodeHalf[] = "encode_f16_b32";  // the kernel
inline constexpr char kHalfWgmmaEncoding[] = "f16_w64";
inline constexpr char kEncodeHalfWgmma[] = "encode_f16_w64";

/// So units begin in the middle of a line of 128 bytes, which an H200 reads faster (1.27 GB at
/// 4,340 GB/s) than from its begin (3,370) or, as gpu_float.h has it, from both in turn (3,880).
inline constexpr uint32_t kHalfHead = kTileOutputs * sizeof(float);
constexpr uint64_t gpu_half_group_bytes(uint64_t k) {
  return kHalfHead + gpu_float_group_bytes(FloatLayout::kF16, k);
}
static_assert(kHalfHead == 64 && gpu_half_group_bytes(kFloatUnit) % 128 == 0);

/// The power of two by which a row of bf16 numbers is divided.
inline float half_scale(const uint16_t* row, uint64_t k) {
  constexpr uint32_t kInfinity = 0x7f80;
  uint32_t largest = 0;
  for (uint64_t i = 0; i < k; ++i) {
    const uint32_t magnitude = row[i] & 0x7fffu;
    largest = std::max(largest, magnitude < kInfinity ? magnitude : 0);
  }
  const int exponent = static_cast<int>(largest >> 7) - 127 - 14;
  return float_from_bits(static_cast<uint32_t>(std::max(exponent, -126) + 127) << 23);
}

/// bf16 numbers times a power of two as f16, rounded to nearest, ties to even; none is too large.
inline void bf16_to_halves(const uint16_t* row, uint64_t k, float factor, uint16_t* out) {
  for (uint64_t i = 0; i < k; ++i) {
    const float scaled = float_from_bits(uint32_t{row[i]} << 16) * factor;
    uint32_t bits, small;
    std::memcpy(&bits, &scaled, sizeof(bits));
    bits &= 0x7fffffffu;
    // Below 2^-14 the last place is 2^-24, which is that of a float32 in [0.5, 1); above it f16 has
    // more places than bf16.
    const float anchored = float_from_bits(bits) + 0.5f;
    std::memcpy(&small, &anchored, sizeof(small));
    uint32_t half = bits < 0x38800000u ? small - 0x3f000000u : (bits >> 13) - (112u << 10);
    if (bits >= 0x7f800000u) half = bits == 0x7f800000u ? 0x7c00u : 0x7e00u;
    out[i] = static_cast<uint16_t>(half | (row[i] & 0x8000u));
  }
}

/// Sixteen rows of a checkpoint (null: zeros) into one group.
inline void pack_gpu_halves(MatrixFamily family, FloatLayout layout, const uint8_t* const* rows,
                            uint64_t k, uint8_t* out) {
  float scales[kTileOutputs];
  std::fill_n(scales, kTileOutputs, 1.0f);
  const uint8_t* halves[kTileOutputs];
  std::copy_n(rows, kTileOutputs, halves);
  std::vector<uint16_t> numbers, row;
  if (layout == FloatLayout::kBF16) {
    numbers.resize(kTileOutputs * k);
    row.resize(k);
    for (uint32_t r = 0; r < kTileOutputs; ++r) {
      if (rows[r] == nullptr) continue;
      std::memcpy(row.data(), rows[r], k * sizeof(uint16_t));
      scales[r] = half_scale(row.data(), k);
      bf16_to_halves(row.data(), k, 1.0f / scales[r], numbers.data() + r * k);
      halves[r] = reinterpret_cast<const uint8_t*>(numbers.data() + r * k);
    }
  }
  std::memcpy(out, scales, sizeof(scales));
  pack_gpu_floats(family, FloatLayout::kF16, halves, k, out + kHalfHead);
}

template <MatrixFamily kFamily, FloatLayout kLayout>
void pack_gpu_halves_of(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_gpu_halves(kFamily, kLayout, rows, k, out);
}

}  // namespace atlas::kernels
