// Bytes are copied out, since a mapped tensor may be aligned to one byte only.
#include "daemon/model/checkpoint/float_values.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace atlas::model {
namespace {

float from_half(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 0x3ff;
  float value = 0;
  if (exponent == 31) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  }
  return (half & 0x8000) != 0 ? -value : value;
}

}  // namespace

std::vector<float> float_values(AtlasDType dtype, std::span<const std::byte> bytes) {
  std::vector<float> out;
  if (dtype == ATLAS_F32) {
    out.resize(bytes.size() / sizeof(float));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
    return out;
  }
  if (dtype != ATLAS_BF16 && dtype != ATLAS_F16) return out;
  out.resize(bytes.size() / sizeof(uint16_t));
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t raw = 0;
    std::memcpy(&raw, bytes.data() + i * sizeof(raw), sizeof(raw));
    out[i] = dtype == ATLAS_BF16 ? std::bit_cast<float>(uint32_t{raw} << 16) : from_half(raw);
  }
  return out;
}

}  // namespace atlas::model
