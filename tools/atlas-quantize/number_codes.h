// Float32 rounded to the small number formats that checkpoints store, and back. Every rounding is
// to nearest, ties to even. Source: the tables of IEEE 754 binary16, bfloat16, and OCP's e4m3 and
// e2m1.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace atlas::quantize {

/// Not a number stays one; overflow becomes infinite.
inline uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/// Subnormals are rounded as such; overflow becomes infinite.
inline uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (magnitude < 0x38800000u) {  // below 2^-14: units of 2^-24
    const float units = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(units));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

inline constexpr float kLargestE4m3 = 448.0f;
inline constexpr float kSmallestE4m3 = 0x1p-9f;

/// Saturates at +-448; not a number becomes the code 0x7f.
inline uint8_t e4m3_from_float(float value) {
  if (std::isnan(value)) return 0x7f;
  const uint32_t sign = std::signbit(value) ? 0x80u : 0u;
  const float magnitude = std::min(std::fabs(value), kLargestE4m3);
  if (magnitude < 0x1p-6f) {  // subnormals: units of 2^-9; 8 of them are the smallest normal code
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p9f)));
  }
  const auto bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = bits + 0x7ffffu + (bits >> 20 & 1u);
  return static_cast<uint8_t>(sign | (rounded - (120u << 23)) >> 20);
}

/// The NaN codes 0x7f and 0xff give NaN.
inline float e4m3_value(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return NAN;
  const float magnitude = std::bit_cast<float>(static_cast<uint32_t>(code & 0x7f) << 20) * 0x1p120f;
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

inline constexpr float kE2m1Values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

/// Saturates at +-6; a tie goes to the even code. What rounds to 0 has the code
/// 0 whatever its sign.
inline uint8_t e2m1_from_float(float value) {
  const float m = std::fabs(value);
  uint8_t code = 7;
  if (m <= 0.25f) {
    code = 0;
  } else if (m < 0.75f) {
    code = 1;
  } else if (m <= 1.25f) {
    code = 2;
  } else if (m < 1.75f) {
    code = 3;
  } else if (m <= 2.5f) {
    code = 4;
  } else if (m < 3.5f) {
    code = 5;
  } else if (m <= 5.0f) {
    code = 6;
  }
  return static_cast<uint8_t>(code | (value < 0 && code != 0 ? 8u : 0u));
}

inline float e2m1_value(uint8_t code) {
  const float magnitude = kE2m1Values[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

}  // namespace atlas::quantize
