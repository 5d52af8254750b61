// Elementary functions in float32 with one fixed order of operations: the same bits on every
// platform. The polynomials are those of kernels/cpu/math-inl.h.
#pragma once

#include "kernels/common/device/warp.h"

namespace atlas::device {

/// a * b + c, rounded once.
ATLAS_DEVICE float fma(float a, float b, float c) {
#if defined(ATLAS_FORM_CUDA)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

ATLAS_DEVICE double fma(double a, double b, double c) {
#if defined(ATLAS_FORM_CUDA)
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

/// a / b and the square root, both rounded once.
ATLAS_DEVICE float divide(float a, float b) {
#if defined(ATLAS_FORM_CUDA)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
ATLAS_DEVICE float square_root(float x) {
#if defined(ATLAS_FORM_CUDA)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

/// The nearest whole number, ties to even, for |x| < 2^22.
ATLAS_DEVICE float round_even(float x) {
  constexpr float kAnchor = 0x1.8p23f;
  return (x + kAnchor) - kAnchor;
}

/// e^x, within 2 units in the last place; subnormal results too. -infinity: 0; NaN: NaN.
ATLAS_DEVICE float exp(float x) {
  // Past these bounds the result is 0 or infinity. A NaN passes neither comparison.
  float bounded = x > -104.0f ? x : -104.0f;
  bounded = bounded < 89.0f ? bounded : 89.0f;
  const float n = round_even(bounded * 0x1.715476p+0f);
  float r = fma(-n, 0x1.62e4p-1f, bounded);
  r = fma(-n, 0x1.7f7d1cp-20f, r);
  float p = 0x1.6a2352p-10f;
  p = fma(p, r, 0x1.123a6cp-7f);
  p = fma(p, r, 0x1.5558f4p-5f);
  p = fma(p, r, 0x1.555490p-3f);
  p = fma(p, r, 0x1.fffffcp-2f);
  p = fma(r * r, p, r);
  p = p + 1.0f;
  // 2^n as a product of two powers, each of which is a normal number.
  const int whole = static_cast<int>(n);
  const int half = whole >> 1;
  const float first = bits_as<float>((half + 127) << 23);
  const float second = bits_as<float>((whole - half + 127) << 23);
  const float y = (p * first) * second;
  return x == x ? y : x;
}

/// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)], within 2 units in the last place.
ATLAS_DEVICE float log_near_one(float f) {
  float q = -0x1.38b452p-4f;
  q = fma(q, f, 0x1.056f9ap-3f);
  q = fma(q, f, -0x1.0d8ed0p-3f);
  q = fma(q, f, 0x1.22d812p-3f);
  q = fma(q, f, -0x1.547126p-3f);
  q = fma(q, f, 0x1.99a014p-3f);
  q = fma(q, f, -0x1.00022ap-2f);
  q = fma(q, f, 0x1.555554p-2f);
  const float square = f * f;
  return f + fma(square * f, q, square * -0.5f);
}

/// Splits a positive normal x into 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
ATLAS_DEVICE void split_power(float x, float& k, float& f) {
  const auto bits = bits_as<int32_t>(x);
  // Subtracting the bits of sqrt(1/2) makes the exponent change where 1 + f would.
  const int32_t power = (bits - 0x3f3504f3) >> 23;
  k = static_cast<float>(power);
  f = bits_as<float>(bits - power * (1 << 23)) - 1.0f;
}

/// k log(2) + log(1 + f).
ATLAS_DEVICE float log_of_parts(float k, float f) {
  return fma(k, 0x1.62e4p-1f, fma(k, 0x1.7f7d1cp-20f, log_near_one(f)));
}

/// log(x) of a positive normal x, within 3 units in the last place, or 2^-25 near 1.
ATLAS_DEVICE float log_positive(float x) {
  float k, f;
  split_power(x, k, f);
  return log_of_parts(k, f);
}

/// -log(1 - u) for u = (bits + 1/2) / 2^31, bits < 2^31: an exponential variate.
ATLAS_DEVICE float exponential_from_bits(uint32_t bits) {
  const float u = (static_cast<float>(static_cast<int32_t>(bits)) + 0.5f) * 0x1p-31f;
  const float rest =
      (static_cast<float>(static_cast<int32_t>(0x7fffffffu - bits)) + 0.5f) * 0x1p-31f;  // 1 - u
  float k, f;
  split_power(rest, k, f);
  // Without a power of two taken out, f is -u, and u itself is the more precise.
  return -log_of_parts(k, k == 0.0f ? -u : f);
}

/// Cosine and sine of an angle, |angle| < 2^50, by the quadrant's Taylor series in the order of
/// kernels/cpu/angles-inl.h.
ATLAS_DEVICE void cos_sin(double angle, double& cosine, double& sine) {
  constexpr double kAnchor = 0x1.8p52;
  const double n = (angle * 0x1.45f306dc9c883p-1 + kAnchor) - kAnchor;  // of 2 / pi
  double r = fma(-n, 0x1.921fb54442d18p+0, angle);                      // pi / 2, in two parts
  r = fma(-n, 0x1.1a62633145c07p-54, r);
  const double square = r * r;
  double s = 1.0 / 6227020800.0;
  s = fma(s, square, -1.0 / 39916800.0);
  s = fma(s, square, 1.0 / 362880.0);
  s = fma(s, square, -1.0 / 5040.0);
  s = fma(s, square, 1.0 / 120.0);
  s = fma(s, square, -1.0 / 6.0);
  s = fma(s * square, r, r);
  double c = 1.0 / 479001600.0;
  c = fma(c, square, -1.0 / 3628800.0);
  c = fma(c, square, 1.0 / 40320.0);
  c = fma(c, square, -1.0 / 720.0);
  c = fma(c, square, 1.0 / 24.0);
  c = fma(c, square, -0.5);
  c = fma(c, square, 1.0);
  // Quadrants 1 and 3 swap the two; 1 and 2 turn the cosine's sign, 2 and 3 the sine's.
  const uint32_t quadrant = static_cast<uint32_t>(static_cast<int64_t>(n)) & 3u;
  const double even = (quadrant & 1u) != 0 ? s : c, odd = (quadrant & 1u) != 0 ? c : s;
  cosine = quadrant == 1 || quadrant == 2 ? -even : even;
  sine = quadrant >= 2 ? -odd : odd;
}

/// Cosine and sine that rotary embeddings turn a pair by, as the contract of `rope` in core.h has
/// them.
ATLAS_DEVICE void rotary_angle(float position, float frequency, float magnitude, float& cosine,
                               float& sine) {
  double c, s;
  cos_sin(static_cast<double>(position * frequency), c, s);
  cosine = static_cast<float>(c) * magnitude;
  sine = static_cast<float>(s) * magnitude;
}

/// 2^x by the platform's own instruction, within about 2 units in the last place: for contracts
/// whose bits are a platform's. Results below 2^-126 may be 0. -infinity: 0; NaN: NaN.
ATLAS_DEVICE float exp2_native(float x) {
#if defined(ATLAS_FORM_CUDA)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_exp2f(x);
#else
  return __builtin_exp2f(x);
#endif
}

ATLAS_DEVICE float sigmoid(float x) { return divide(1.0f, 1.0f + exp(-x)); }
ATLAS_DEVICE float silu(float x) { return divide(x, 1.0f + exp(-x)); }

}  // namespace atlas::device
