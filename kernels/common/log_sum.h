// The logarithm in float64 with one fixed order of operations: the same bits on every platform, so
// that log-probabilities are.
#pragma once

#include <cstdint>

namespace atlas::kernels {

/// log(x) of a positive normal x, within about 1 unit in the last place.
constexpr double log_of_sum(double x) {
  // x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)): subtracting the bits of sqrt(1/2) makes the
  // exponent change where 1 + f would.
  const auto bits = __builtin_bit_cast(int64_t, x);
  const int64_t power = (bits - 0x3fe6a09e667f3bcd) >> 52;
  const auto k = static_cast<double>(power);
  const double f = __builtin_bit_cast(double, bits - power * (int64_t{1} << 52)) - 1.0;
  // With s = f / (2 + f): log(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + ...), up to s^21; |s| < 0.1716.
  const double s = f / (2.0 + f), square = s * s;
  double series = 2.0 / 21.0;
  for (int odd = 19; odd >= 3; odd -= 2) series = series * square + 2.0 / odd;
  series = series * square;
  // 2 s = f - f^2 / 2 + s f^2 / 2, whose first term is exact.
  const double half = 0.5 * f * f;
  const double low = s * (half + series) + k * 0x1.a39ef35793c76p-33;  // of log(2)
  return k * 0x1.62e42feep-1 + (f - (half - low));
}

}  // namespace atlas::kernels
