// How fast a row's state decays: softplus with the bits of kernels/cpu/gdn.cpp.
#pragma once

#include "kernels/common/device/device.h"

namespace atlas::kernels {

/// max(x, 0) + log(1 + e^-|x|): log1p as kernels/cpu/gdn.cpp has it.
ATLAS_DEVICE float gdn_log_near_one(float f) {
  using device::fma;
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
ATLAS_DEVICE float gdn_softplus(float x) {
  using namespace device;
  const float u = exp(x < 0.0f ? x : -x);
  float log;
  if (u <= 0x1.a8p-2f) {
    log = gdn_log_near_one(u);
  } else {
    // 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
    const auto bits = bits_as<int32_t>(u + 1.0f);
    const int32_t power = (bits - 0x3f3504f3) >> 23;
    const float f = bits_as<float>(bits - power * 0x800000) - 1.0f;
    const auto k = static_cast<float>(power);
    log = fma(k, 0x1.62e4p-1f, fma(k, 0x1.7f7d1cp-20f, gdn_log_near_one(f)));
  }
  return (x > 0.0f ? x : 0.0f) + log;
}

}  // namespace atlas::kernels
