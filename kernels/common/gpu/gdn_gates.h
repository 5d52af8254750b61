// How fast a row's state decays: softplus with the bits of kernels/cpu/gdn.cpp.
#pragma once

#include "kernels/common/device/device.h"

namespace atlas::kernels {

/// max(x, 0) + log(1 + e^-|x|): log1p as kernels/cpu/gdn.cpp has it.
ATLAS_DEVICE float gdn_softplus(float x) {
  using namespace device;
  const float u = exp(x < 0.0f ? x : -x);
  float log;
  if (u <= 0x1.a8p-2f) {
    log = log_near_one(u);
  } else {
    float k, f;
    split_power(u + 1.0f, k, f);
    log = log_of_parts(k, f);
  }
  return (x > 0.0f ? x : 0.0f) + log;
}

}  // namespace atlas::kernels
