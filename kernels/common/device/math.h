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

ATLAS_DEVICE float sigmoid(float x) { return divide(1.0f, 1.0f + exp(-x)); }
ATLAS_DEVICE float silu(float x) { return divide(x, 1.0f + exp(-x)); }

}  // namespace atlas::device
