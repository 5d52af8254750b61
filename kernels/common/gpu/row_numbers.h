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

template <bool kF16>
ATLAS_DEVICE uint32_t number_pair(float low, float high) {
  if constexpr (kF16) {
    return bounded_f16_pair(low, high);
  } else {
    return device::bf16_pair(low, high);
  }
}
template <bool kF16>
ATLAS_DEVICE float number_low(uint32_t pair) {
  if constexpr (kF16) {
    return device::f16_low(pair);
  } else {
    return device::bf16_low(pair);
  }
}
template <bool kF16>
ATLAS_DEVICE float number_high(uint32_t pair) {
  if constexpr (kF16) {
    return device::f16_high(pair);
  } else {
    return device::bf16_high(pair);
  }
}

}  // namespace atlas::kernels
