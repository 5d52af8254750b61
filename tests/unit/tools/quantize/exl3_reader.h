// An EXL3 reader that follows the format's description word by word and is as slow as that is. It
// shares no code with the encoder or the plugin.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace atlas::testing {

/// Bits of an IEEE binary16 as a double.
inline double exl3_half(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// A double rounded to the nearest binary16, ties to even, no overflow.
inline double exl3_round_half(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = m 2^exponent, m in [0.5, 1)
  const double unit = std::ldexp(1.0, std::max(exponent - 11, -24));
  return std::nearbyint(value / unit) * unit;
}

/// Value of a state; `codebook` is "mul1", "mcg" or "3inst".
inline double exl3_value(const std::string& codebook, uint32_t state) {
  if (codebook == "mul1") {
    const uint32_t u = static_cast<uint32_t>(uint64_t{state} * 0x83DCD12Dull);
    uint32_t bytes = 0;
    for (int i = 0; i < 4; ++i) bytes += u >> (8 * i) & 0xff;
    return exl3_round_half((1024.0 + bytes) * exl3_half(0x1EEE) + exl3_half(0xC931));
  }
  const uint64_t product = codebook == "mcg" ? uint64_t{state} * 0xCBAC1FEDull
                                             : uint64_t{state} * 89226354ull + 64248484ull;
  const uint32_t v = (static_cast<uint32_t>(product) & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return exl3_round_half(exl3_half(v & 0xffff) + exl3_half(v >> 16));
}

/// States of a tile of 16 K 16-bit units as the file stores them.
inline std::vector<uint32_t> exl3_states(const uint16_t* stored, uint32_t bits) {
  // The ring, bit by bit: of each pair of units the second comes first, most significant bit first.
  std::vector<int> ring;
  for (uint32_t pair = 0; pair < 8 * bits; ++pair) {
    for (const uint32_t unit : {2 * pair + 1, 2 * pair}) {
      for (int bit = 15; bit >= 0; --bit) ring.push_back(stored[unit] >> bit & 1);
    }
  }
  std::vector<uint32_t> states;
  const size_t size = ring.size();
  for (size_t t = 0; t < 256; ++t) {
    uint32_t state = 0;
    for (size_t i = 0; i < 16; ++i) {
      state = state << 1 | static_cast<uint32_t>(ring[((t + 1) * bits - 16 + i + size) % size]);
    }
    states.push_back(state);
  }
  return states;
}

/// The weight [k, n] that the tensors of a linear stand for, in double.
inline std::vector<double> exl3_weight(const std::vector<uint16_t>& trellis,
                                       const std::vector<uint16_t>& suh,
                                       const std::vector<uint16_t>& svh, uint32_t bits,
                                       const std::string& codebook) {
  const size_t k = suh.size(), n = svh.size();
  std::vector<double> what(k * n);
  for (size_t i = 0; i < k / 16; ++i) {
    for (size_t j = 0; j < n / 16; ++j) {
      const auto states = exl3_states(&trellis[(i * (n / 16) + j) * 16 * bits], bits);
      for (size_t t = 0; t < 256; ++t) {
        const size_t lane = t / 8, w = t % 8;
        const size_t row = 2 * (lane % 4) + w % 2 + (w / 2 % 2 == 1 ? 8 : 0);
        const size_t column = lane / 4 + (w >= 4 ? 8 : 0);
        what[(16 * i + row) * n + 16 * j + column] = exl3_value(codebook, states[t]);
      }
    }
  }
  const auto entry = [](size_t r, size_t c) {
    return (__builtin_popcountll(r & c) % 2 == 0 ? 1.0 : -1.0) / std::sqrt(128.0);
  };
  std::vector<double> half(k * n), out(k * n);
  for (size_t r = 0; r < k; ++r) {
    for (size_t c = 0; c < n; ++c) {
      for (size_t i = 0; i < 128; ++i) {
        half[r * n + c] += entry(r % 128, i) * what[(r / 128 * 128 + i) * n + c];
      }
    }
  }
  for (size_t r = 0; r < k; ++r) {
    for (size_t c = 0; c < n; ++c) {
      double sum = 0;
      for (size_t i = 0; i < 128; ++i) {
        sum += half[r * n + c / 128 * 128 + i] * entry(i, c % 128);
      }
      out[r * n + c] = exl3_half(suh[r]) * sum * exl3_half(svh[c]);
    }
  }
  return out;
}

}  // namespace atlas::testing
