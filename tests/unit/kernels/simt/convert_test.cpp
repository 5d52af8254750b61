// Conversions of the device layer against the definitions of the formats: the nearest value of a
// table, ties to the even code.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/common/device/device.h"

namespace atlas::test {
namespace {

using namespace atlas::device;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The code of the nearest of ascending `values`, ties to the even code; past the last one: it.
uint32_t nearest(const std::vector<float>& values, float x) {
  uint32_t best = 0;
  for (uint32_t code = 1; code < values.size(); ++code) {
    const double now = std::fabs(double{x} - values[code]),
                 then = std::fabs(double{x} - values[best]);
    if (now < then || (now == then && code % 2 == 0)) best = code;
  }
  return best;
}

/// Every value, every midpoint of two, and their neighbours in float32.
std::vector<float> interesting(const std::vector<float>& values) {
  std::vector<float> all;
  for (size_t i = 0; i < values.size(); ++i) {
    const float middle =
        i + 1 < values.size() ? 0.5f * (values[i] + values[i + 1]) : values[i] * 1.5f;
    for (const float x : {values[i], middle}) {
      all.push_back(x);
      all.push_back(std::nextafter(x, 0.0f));
      all.push_back(std::nextafter(x, kInfinity));
    }
  }
  return all;
}

template <typename Value>
std::vector<float> table(uint32_t count, const Value& value) {
  std::vector<float> values;
  for (uint32_t code = 0; code < count; ++code) values.push_back(value(code));
  return values;
}

}  // namespace

TEST_SUITE("simt") {
  TEST_CASE("device: e4m3 rounds to the nearest code and saturates") {
    const std::vector<float> values = table(0x7f, e4m3_value);
    CHECK(values.back() == 448.0f);
    for (const float x : interesting(values)) {
      CAPTURE(x);
      CHECK(e4m3_of(x) == nearest(values, x));
      CHECK(e4m3_of(-x) == (0x80 | nearest(values, x)));
    }
    CHECK(e4m3_of(kInfinity) == 0x7e);
    CHECK(e4m3_of(kNaN) == 0x7f);
  }

  TEST_CASE("device: e2m1 rounds to the nearest code and saturates") {
    const std::vector<float> values = table(8, e2m1_value);
    CHECK(values == std::vector<float>{0, 0.5f, 1, 1.5f, 2, 3, 4, 6});
    for (const float x : interesting(values)) {
      CAPTURE(x);
      CHECK(e2m1_of(x) == nearest(values, x));
      CHECK(e2m1_of(-x) == (8 | nearest(values, x)));
    }
    CHECK(e2m1_value(13) == -3.0f);
  }

  TEST_CASE("device: f16 rounds to the nearest code, subnormals too") {
    const std::vector<float> values = table(0x7c00, f16_value);
    std::mt19937 random(7);
    for (int i = 0; i < 4000; ++i) {
      const uint32_t code = random() % 0x7bff;
      const float low = values[code], high = values[code + 1], middle = 0.5f * (low + high);
      const uint32_t even = code % 2 == 0 ? code : code + 1;
      CHECK(f16_of(low) == code);
      CHECK(f16_of(middle) == even);
      CHECK(f16_of(std::nextafter(middle, 0.0f)) == code);
      CHECK(f16_of(-std::nextafter(middle, kInfinity)) == (0x8000 | (code + 1)));
    }
    CHECK(f16_of(65519.996f) == 0x7bff);
    CHECK(f16_of(65520.0f) == 0x7c00);
    CHECK(f16_of(-kInfinity) == 0xfc00);
    CHECK((f16_of(kNaN) & 0x7fff) > 0x7c00);
    CHECK(f16_low(f16_pair(1.5f, -2.0f)) == 1.5f);
    CHECK(f16_high(f16_pair(1.5f, -2.0f)) == -2.0f);
  }

  TEST_CASE("device: bf16 rounds to the nearest code") {
    std::mt19937 random(8);
    for (int i = 0; i < 4000; ++i) {
      const uint32_t code = random() % 0x7f7f;
      const float low = bf16_low(code), high = bf16_low(code + 1);
      const float middle = bits_as<float>((code << 16) + 0x8000u);
      CHECK(bf16_pair(low, high) == (code | (code + 1) << 16));
      CHECK(bf16_pair(middle, 0.0f) == (code % 2 == 0 ? code : code + 1));
      CHECK(bf16_pair(0.0f, -std::nextafter(middle, kInfinity)) == (0x8000u | (code + 1)) << 16);
    }
    CHECK(bf16_pair(kInfinity, std::numeric_limits<float>::max()) == 0x7f807f80u);
    CHECK((bf16_pair(kNaN, 0.0f) & 0x7fff) > 0x7f80);
  }

  TEST_CASE("device: ue8m0 goes up to the next power of two") {
    CHECK(ue8m0_value(127) == 1.0f);
    CHECK(ue8m0_value(0) == 0x1p-127f);
    CHECK(std::isnan(ue8m0_value(255)));
    for (uint32_t code = 0; code < 255; ++code) {
      const float power = ue8m0_value(code);
      CHECK(ue8m0_up(power) == code);
      if (code < 254) CHECK(ue8m0_up(std::nextafter(power, kInfinity)) == code + 1);
    }
    CHECK(ue8m0_up(0.0f) == 0);
    CHECK(ue8m0_up(kInfinity) == 254);
    CHECK(ue8m0_up(kNaN) == 255);
  }

  TEST_CASE("device: exp is within two units in the last place") {
    std::mt19937 random(9);
    std::uniform_real_distribution<float> any(-104.0f, 88.7f);
    for (int i = 0; i < 20000; ++i) {
      const float x = any(random);
      const double exact = std::exp(double{x});
      const double unit = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
      CHECK(std::fabs(exp(x) - exact) <= 2 * unit);
    }
    CHECK(exp(0.0f) == 1.0f);
    CHECK(exp(-kInfinity) == 0.0f);
    CHECK(exp(kInfinity) == kInfinity);
    CHECK(std::isnan(exp(kNaN)));
  }

  TEST_CASE("device: dot4 multiplies signed bytes and wraps") {
    CHECK(dot4(0x80ff0102u, 0x7f7f0304u, 10) == 10 + 2 * 4 + 1 * 3 - 127 - 128 * 127);
    CHECK(dot4(0x01010101u, 0x01010101u, std::numeric_limits<int32_t>::max()) ==
          std::numeric_limits<int32_t>::min() + 3);
  }
}

}  // namespace atlas::test
