// The 16-bit numbers of encoded rows: bf16, or f16, as which what is too large becomes the largest
// number.
#pragma once

#include "kernels/common/device/convert.h"

namespace atlas::kernels {

/// Two f16 in a word: `low` in bits 0..15.
ATLAS_DEVICE uint32_t bounded_f16_pair(float low, float high) {
#if defined(ATLAS_FORM_CUDA)
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  constexpr float kMost = 65504.0f;
  const auto within = [](float x) { return x > kMost ? kMost : x < -kMost ? -kMost : x; };
  return device::f16_pair(within(low), within(high));
#endif
}

ATLAS_DEVICE uint32_t number_pair(bool f16, float low, float high) {
  return f16 ? bounded_f16_pair(low, high) : device::bf16_pair(low, high);
}
ATLAS_DEVICE float number_low(bool f16, uint32_t pair) {
  return f16 ? device::f16_low(pair) : device::bf16_low(pair);
}
ATLAS_DEVICE float number_high(bool f16, uint32_t pair) {
  return f16 ? device::f16_high(pair) : device::bf16_high(pair);
}

}  // namespace atlas::kernels
