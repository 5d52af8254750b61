// Comparing numbers in tests: bits, units in the last place, and reproducible random values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace atlas::test {

/// Whether both hold the same bits: NaN equals itself, 0 is not -0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Distance of `value` from `exact` in units of float32's last place at `exact`; 0 if both
/// overflow.
inline double ulps(float value, double exact) {
  const auto rounded = static_cast<float>(exact);
  if (std::isnan(exact)) return std::isnan(value) ? 0.0 : HUGE_VAL;
  if (std::isinf(rounded)) return value == rounded ? 0.0 : HUGE_VAL;
  const float magnitude = std::max(std::fabs(rounded), 0x1p-126f);
  return std::fabs(static_cast<double>(value) - exact) /
         std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

inline std::vector<float> normal_values(size_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

inline void append(std::vector<float>& to, const std::vector<float>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// Largest |a[i] - b[i]|; infinite if one is not finite.
inline double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0.0 : HUGE_VAL;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
    largest = std::isfinite(difference) ? std::max(largest, difference) : HUGE_VAL;
  }
  return largest;
}

}  // namespace atlas::test
