// Conversions between float32 and the narrow formats: bf16, f16, e4m3, e2m1, ue8m0. All round to
// nearest, ties to even, unless said. Bits are the same in every form, but for the payload of a
// NaN.
#pragma once

#include "kernels/common/codecs.h"
#include "kernels/common/device/warp.h"

namespace atlas::device {

/// Two bf16 in a word: `low` in bits 0..15.
ATLAS_DEVICE uint32_t bf16_pair(float low, float high) {
#if defined(ATLAS_FORM_CUDA)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto round = [](float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  };
  return round(low) | round(high) << 16;
#endif
}
ATLAS_DEVICE float bf16_low(uint32_t pair) { return bits_as<float>(pair << 16); }
ATLAS_DEVICE float bf16_high(uint32_t pair) { return bits_as<float>(pair & 0xffff0000u); }

/// One f16. Past 65,519 it is an infinity.
ATLAS_DEVICE uint32_t f16_of(float x) {
#if defined(ATLAS_FORM_CUDA)
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#elif defined(ATLAS_FORM_HIP)
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(x));
#else
  const uint32_t bits = bits_as<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return 0x7fffu;
  if (rest >= 0x477ff000u) return sign | 0x7c00u;  // 65,520 and more
  if (rest < 0x38800000u) {
    // Below 2^-14 the last place is 2^-24, which is that of a float32 in [0.5, 1).
    return sign | (bits_as<uint32_t>(bits_as<float>(rest) + 0.5f) - 0x3f000000u);
  }
  return sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13;
#endif
}
ATLAS_DEVICE uint32_t f16_pair(float low, float high) { return f16_of(low) | f16_of(high) << 16; }
ATLAS_DEVICE float f16_value(uint32_t half) {
#if defined(ATLAS_FORM_CUDA)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(half)));
  return x;
#elif defined(ATLAS_FORM_HIP)
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<uint16_t>(half)));
#else
  return kernels::f16_to_f32(static_cast<uint16_t>(half));
#endif
}
ATLAS_DEVICE float f16_low(uint32_t pair) { return f16_value(pair & 0xffffu); }
ATLAS_DEVICE float f16_high(uint32_t pair) { return f16_value(pair >> 16); }

/// Rounds |x| to a minifloat with `kMantissa` bits and smallest normal 2^kLeast; the largest is
/// `limit`, as a code. The code has no sign.
template <uint32_t kMantissa, int kLeast>
ATLAS_DEVICE uint32_t minifloat_of(float magnitude, uint32_t limit) {
  constexpr uint32_t kShift = 23 - kMantissa;
  const uint32_t bits = bits_as<uint32_t>(magnitude);
  // A float32 whose last place is that of the subnormals: adding it rounds them.
  constexpr uint32_t kAnchor = static_cast<uint32_t>(127 + kLeast + static_cast<int>(kShift)) << 23;
  constexpr uint32_t kNormal = static_cast<uint32_t>(127 + kLeast) << 23;
  uint32_t code;
  if (bits < kNormal) {
    code = bits_as<uint32_t>(magnitude + bits_as<float>(kAnchor)) - kAnchor;
  } else {
    const uint32_t rounded = bits + (uint32_t{1} << (kShift - 1)) - 1 + (bits >> kShift & 1);
    code = ((rounded - kNormal) >> kShift) + (uint32_t{1} << kMantissa);
  }
  return code < limit ? code : limit;
}

/// e4m3, saturating at 448. NaN: 0x7f.
ATLAS_DEVICE uint32_t e4m3_of(float x) {
#if defined(ATLAS_FORM_CUDA)
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return pair & 0xffu;
#else
  if (x != x) return 0x7fu;
  const uint32_t bits = bits_as<uint32_t>(x);
  return (bits >> 24 & 0x80u) | minifloat_of<3, -6>(bits_as<float>(bits & 0x7fffffffu), 0x7eu);
#endif
}
ATLAS_DEVICE float e4m3_value(uint32_t code) {
  return kernels::e4m3_to_f32(static_cast<uint8_t>(code));
}

/// e2m1, saturating at 6: a code of 4 bits.
ATLAS_DEVICE uint32_t e2m1_of(float x) {
  const uint32_t bits = bits_as<uint32_t>(x);
  return (bits >> 28 & 8u) | minifloat_of<1, 0>(bits_as<float>(bits & 0x7fffffffu), 7u);
}
ATLAS_DEVICE float e2m1_value(uint32_t code) {
  // As a float32 with the same fields the value is 2^126 too small; the product is exact.
  const float magnitude = bits_as<float>((code & 7u) << 22) * 0x1p126f;
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

/// 2^(code - 127); 255 is NaN.
ATLAS_DEVICE float ue8m0_value(uint32_t code) {
  if (code == 255) return bits_as<float>(0x7fc00000u);
  return bits_as<float>(code == 0 ? 0x00400000u : code << 23);
}
/// The lowest power of two that is not below x (not negative); saturates at 2^127. NaN: 255.
ATLAS_DEVICE uint32_t ue8m0_up(float x) {
  if (x != x) return 255;
  const uint32_t bits = bits_as<uint32_t>(x);
  if (bits <= 0x00400000u) return 0;
  const uint32_t code = (bits + 0x7fffffu) >> 23;
  return code < 254 ? code : 254;
}

}  // namespace atlas::device
