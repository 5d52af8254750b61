// The kernels' own exp and log against float64 over their whole domains, and their bits on every
// instruction set; Philox against published vectors.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/kernels/cpu/math_test.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

// All lanes: counts are multiples of 16.
void ExpAll(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) Store16(Exp16(Load16(x + i)), y + i);
}
void LogAll(const float* x, float* y, size_t n) {
  const F32 d;
  for (size_t i = 0; i < n; i += kRegisterLanes) {
    hn::StoreU(LogPositive(d, hn::LoadU(d, x + i)), d, y + i);
  }
}
void ExponentialAll(const int32_t* bits, float* y, size_t n) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  for (size_t i = 0; i < n; i += kRegisterLanes) {
    hn::StoreU(ExponentialFromBits(d, hn::LoadU(di, bits + i)), d, y + i);
  }
}
void SumAll(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) y[i / 16] = SumPairwise(Load16(x + i));
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/philox.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/numbers.h"

namespace atlas::kernels::cpu {

HWY_EXPORT(ExpAll);
HWY_EXPORT(LogAll);
HWY_EXPORT(ExponentialAll);
HWY_EXPORT(SumAll);

namespace {

using test::cpu_targets;
using test::CpuTarget;
using test::ForcedTarget;
using test::same_bits;

/// Without fused multiply-add, products round once more: those bits are allowed to differ.
bool has_fma(const CpuTarget& target) { return target.name != "SCALAR"; }

/// Every `step`-th float from the bits `first` to `last`, padded to whole groups of 16.
std::vector<float> floats_between(uint32_t first, uint32_t last, uint32_t step) {
  std::vector<float> values;
  for (uint64_t bits = first; bits <= last; bits += step) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  while (values.size() % 16 != 0) values.push_back(values.back());
  return values;
}

template <typename Function>
void check_all(const std::vector<float>& x, double allowed_ulps, const Function& exact,
               void (*run)(const float*, float*, size_t)) {
  std::vector<float> best;
  for (const CpuTarget& target : cpu_targets()) {
    CAPTURE(target.name);
    const ForcedTarget forced(target);
    std::vector<float> y(x.size());
    run(x.data(), y.data(), x.size());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, test::ulps(y[i], exact(static_cast<double>(x[i]))));
    }
    CHECK(worst <= allowed_ulps);
    if (best.empty()) best = y;
    if (has_fma(target)) CHECK(same_bits(y, best));
  }
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("math: exp is within 2 units in the last place from underflow to overflow") {
    const auto run = [](const float* x, float* y, size_t n) {
      HWY_DYNAMIC_DISPATCH(ExpAll)(x, y, n);
    };
    const auto exact = [](double x) { return std::exp(x); };
    // Steps are primes, so that all parts of a mantissa are met.
    check_all(floats_between(0x80000000u, 0xc2d20000u, 1999), 2.0, exact, run);  // -0 .. -105
    check_all(floats_between(0x00000000u, 0x42b40000u, 1999), 2.0, exact, run);  // 0 .. 90
    const float infinity = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float lowest = std::numeric_limits<float>::lowest();
    std::vector<float> edges{0.0f,   -0.0f,     -infinity, infinity,   lowest,   -lowest,
                             nan,    88.72283f, 88.72284f, -87.33655f, -103.97f, -103.98f,
                             1e-30f, -1e-30f,   1.0f,      -1.0f};
    check_all(edges, 2.0, exact, run);
    std::vector<float> y(16);
    HWY_DYNAMIC_DISPATCH(ExpAll)(edges.data(), y.data(), 16);
    CHECK(y[0] == 1.0f);
    CHECK(y[1] == 1.0f);
    CHECK(std::bit_cast<uint32_t>(y[2]) == 0);
    CHECK(y[3] == infinity);
  }

  TEST_CASE("math: log is within 3 units in the last place, or 2^-25 near 1") {
    const auto run = [](const float* x, float* y, size_t n) {
      HWY_DYNAMIC_DISPATCH(LogAll)(x, y, n);
    };
    const auto exact = [](double x) { return std::log(x); };
    check_all(floats_between(0x00800000u, 0x3f000000u, 3989), 3.0, exact, run);  // to 0.5
    check_all(floats_between(0x40000000u, 0x7f7fffffu, 3989), 3.0, exact, run);  // from 2
    const std::vector<float> near = floats_between(0x3f000000u, 0x40000000u, 37);
    for (const CpuTarget& target : cpu_targets()) {
      CAPTURE(target.name);
      const ForcedTarget forced(target);
      std::vector<float> y(near.size());
      run(near.data(), y.data(), y.size());
      double worst = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const double right = std::log(static_cast<double>(near[i]));
        const double allowed = std::max(std::fabs(right) * 3 * 0x1p-24, 0x1p-25);
        worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - right) / allowed);
      }
      CHECK(worst <= 1.0);
    }
  }

  TEST_CASE("math: exponential variates keep their precision at both ends, and are positive") {
    std::vector<int32_t> bits;
    for (int32_t i = 0; i < 4096; ++i) {
      bits.push_back(i);
      bits.push_back(0x7fffffff - i);
    }
    for (int64_t b = 0; b <= 0x7fffffff; b += 15013) bits.push_back(static_cast<int32_t>(b));
    while (bits.size() % 16 != 0) bits.push_back(0);
    std::vector<float> best;
    for (const CpuTarget& target : cpu_targets()) {
      CAPTURE(target.name);
      const ForcedTarget forced(target);
      std::vector<float> y(bits.size());
      HWY_DYNAMIC_DISPATCH(ExponentialAll)(bits.data(), y.data(), y.size());
      double worst = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const double u = (static_cast<double>(bits[i]) + 0.5) * 0x1p-31;
        worst = std::max(worst, test::ulps(y[i], -std::log1p(-u)));
      }
      CHECK(worst <= 4.0);
      CHECK(*std::min_element(y.begin(), y.end()) > 0.0f);
      CHECK(*std::max_element(y.begin(), y.end()) < 22.5f);
      if (best.empty()) best = y;
      if (has_fma(target)) CHECK(same_bits(y, best));
    }
  }

  TEST_CASE("math: lanes are summed pairwise, 8 apart, then 4, 2 and 1") {
    const std::vector<float> x = test::normal_values(64, 3, 100.0f);
    for (const CpuTarget& target : cpu_targets()) {
      const ForcedTarget forced(target);
      std::vector<float> y(4);
      HWY_DYNAMIC_DISPATCH(SumAll)(x.data(), y.data(), x.size());
      for (size_t g = 0; g < 4; ++g) {
        std::vector<float> lanes(x.begin() + 16 * g, x.begin() + 16 * (g + 1));
        for (size_t apart = 8; apart > 0; apart /= 2) {
          for (size_t i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
        }
        CHECK(y[g] == lanes[0]);
      }
    }
  }

  TEST_CASE("philox: the published vectors of ten rounds come out") {
    // Random123, tests/kat_vectors, "philox4x32 10".
    using Words = std::array<uint32_t, 4>;
    CHECK(philox4x32({0, 0, 0, 0}, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) ==
          Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
          Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  }
}

}  // namespace atlas::kernels::cpu
#endif
