// Integer operations that decoders are made of, and arithmetic on two f16 numbers in a word.
#pragma once

#include "kernels/common/device/convert.h"

namespace atlas::device {

/// Bits [shift, shift + 32) of high:low; shift is 0 to 31.
ATLAS_DEVICE uint32_t funnel_right(uint32_t high, uint32_t low, uint32_t shift) {
#if defined(ATLAS_FORM_CUDA)
  return __funnelshift_r(low, high, shift);
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_alignbit(high, low, shift);
#else
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift);
#endif
}

/// c + the sum of four unsigned bytes.
ATLAS_DEVICE uint32_t sum_of_bytes(uint32_t bytes, uint32_t c) {
#if defined(ATLAS_FORM_CUDA)
  return __dp4a(bytes, 0x01010101u, c);
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_sad_u8(bytes, 0, c);
#else
  return c + (bytes & 255) + (bytes >> 8 & 255) + (bytes >> 16 & 255) + (bytes >> 24);
#endif
}

/// The low, or the high, halves of two words in one: a's in bits 0..15.
ATLAS_DEVICE uint32_t low_halves(uint32_t a, uint32_t b) {
#if defined(ATLAS_FORM_CUDA)
  return __byte_perm(a, b, 0x5410);
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_perm(b, a, 0x05040100);
#else
  return (a & 0xffffu) | b << 16;
#endif
}
ATLAS_DEVICE uint32_t high_halves(uint32_t a, uint32_t b) {
#if defined(ATLAS_FORM_CUDA)
  return __byte_perm(a, b, 0x7632);
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_perm(b, a, 0x07060302);
#else
  return a >> 16 | (b & 0xffff0000u);
#endif
}

#if defined(ATLAS_FORM_EMULATED)
/// The nearest f16 of a float64.
inline uint32_t f16_of_double(double x) {
  // To odd first, so that the second rounding is that of x itself.
  float near = static_cast<float>(x);
  uint32_t bits = bits_as<uint32_t>(near);
  if (static_cast<double>(near) != x && near == near) {
    const double magnitude = x < 0 ? -x : x, rounded = near < 0 ? -near : near;
    if (rounded > magnitude) --bits;
    bits |= 1;
  }
  return f16_of(bits_as<float>(bits));
}
#elif defined(ATLAS_FORM_HIP)
using HalfPair = _Float16 __attribute__((ext_vector_type(2)));
#endif

/// a + b and a * b + c of both halves, each rounded once to f16.
ATLAS_DEVICE uint32_t f16_add(uint32_t a, uint32_t b) {
#if defined(ATLAS_FORM_CUDA)
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
#elif defined(ATLAS_FORM_HIP)
  return __builtin_bit_cast(uint32_t,
                            __builtin_bit_cast(HalfPair, a) + __builtin_bit_cast(HalfPair, b));
#else
  // Exact in float64.
  return f16_of_double(double{f16_low(a)} + f16_low(b)) |
         f16_of_double(double{f16_high(a)} + f16_high(b)) << 16;
#endif
}
ATLAS_DEVICE uint32_t f16_fma(uint32_t a, uint32_t b, uint32_t c) {
#if defined(ATLAS_FORM_CUDA)
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#elif defined(ATLAS_FORM_HIP)
  return __builtin_bit_cast(uint32_t, __builtin_elementwise_fma(__builtin_bit_cast(HalfPair, a),
                                                                __builtin_bit_cast(HalfPair, b),
                                                                __builtin_bit_cast(HalfPair, c)));
#else
  const auto one = [](float x, float y, float z) {
    // Exact in float64 unless the terms lie more than 2^30 apart.
    return f16_of_double(double{x} * y + z);
  };
  return one(f16_low(a), f16_low(b), f16_low(c)) | one(f16_high(a), f16_high(b), f16_high(c)) << 16;
#endif
}

}  // namespace atlas::device
