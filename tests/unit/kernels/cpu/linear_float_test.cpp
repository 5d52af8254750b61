// Products of floating-point weights: every instruction set against a scalar walk of the contract
// "f32", bit for bit, and against float64.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/cpu_linear.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/float_weights.h"

namespace atlas::test {
namespace {

using kernels::FloatLayout;

constexpr FloatLayout kLayouts[] = {FloatLayout::kF32, FloatLayout::kF16, FloatLayout::kBF16};
constexpr float kUntouched = -7.25f;
constexpr size_t kPadding = 3;  // elements behind each row of x and y

std::vector<float> activations(uint32_t m, uint32_t k) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{m} * (k + kPadding));
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<float> run(const CpuPack& pack, const FloatWeights& weights,
                       const std::vector<float>& x, uint32_t m, Split split = {},
                       uint32_t epilogue = ATLAS_EPILOGUE_NONE) {
  std::vector<float> y(size_t{m} * (weights.n + kPadding), kUntouched);
  kernels::LinearParams params{};
  params.x = x.data();
  params.weight = weights.packed.data();
  params.y = y.data();
  params.row_count = &m;
  params.x_row_bytes = (weights.k + kPadding) * sizeof(float);
  params.y_stride = weights.n + kPadding;
  params.n = weights.n;
  params.k = weights.k;
  params.epilogue = epilogue;
  pack.run(std::string("linear_") + name_of(weights.layout), params,
           kernels::linear_tasks(params.n), split);
  return y;
}

float contract(const FloatWeights& weights, const float* x, uint32_t output) {
  float total = 0.0f;
  for (uint32_t begin = 0; begin < weights.k; begin += kernels::kF32Segment) {
    float parts[2] = {0.0f, 0.0f};
    for (uint32_t i = begin; i < std::min(weights.k, begin + kernels::kF32Segment); ++i) {
      parts[i % 2] = std::fma(weights.at(output, i), x[i], parts[i % 2]);
    }
    total += parts[0] + parts[1];
  }
  return total;
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("linear float: every instruction set has the contract's bits, odd sizes included") {
    const CpuPack pack;
    for (const FloatLayout layout : kLayouts) {
      CHECK(pack.params_digest(std::string("linear_") + name_of(layout)) ==
            kernels::kLinearParamsDigest);
      for (const auto& [n, k] : {std::pair{1u, 1u}, {37u, 33u}, {48u, 256u}, {17u, 643u}}) {
        const FloatWeights weights(layout, n, k);
        for (const uint32_t m : {1u, 3u, 9u, 23u}) {
          const std::vector<float> x = activations(m, k);
          for (const CpuTarget& target : cpu_targets()) {
            const ForcedTarget forced(target);
            const std::vector<float> y = run(pack, weights, x, m);
            size_t wrong = 0;
            for (size_t i = 0; i < y.size(); ++i) {
              const auto row = static_cast<uint32_t>(i / (n + kPadding));
              const auto output = static_cast<uint32_t>(i % (n + kPadding));
              const float expected =
                  output < n ? contract(weights, x.data() + row * (k + kPadding), output)
                             : kUntouched;
              wrong += y[i] != expected ? 1 : 0;
            }
            CAPTURE(name_of(layout));
            CAPTURE(target.name);
            CAPTURE(n);
            CAPTURE(k);
            CAPTURE(m);
            CHECK(wrong == 0);
          }
        }
      }
    }
  }

  TEST_CASE("linear float: a row has the same bits alone, among many, and for any split") {
    const CpuPack pack;
    for (const FloatLayout layout : kLayouts) {
      CAPTURE(name_of(layout));
      const FloatWeights weights(layout, 2100, 576);
      const std::vector<float> x = activations(64, weights.k);
      const std::vector<float> all = run(pack, weights, x, 64);
      CHECK(run(pack, weights, x, 64, Split{2, 1}) == all);
      CHECK(run(pack, weights, x, 64, Split{3, 7}) == all);
      for (const uint32_t m : {1u, 5u, 9u}) {
        const std::vector<float> some = run(pack, weights, x, m);
        CHECK(std::equal(some.begin(), some.end(), all.begin()));
      }
    }
  }

  TEST_CASE("linear float: against float64 the error is that of float32 sums; add adds") {
    const CpuPack pack;
    for (const FloatLayout layout : kLayouts) {
      const FloatWeights weights(layout, 33, 1536);
      const std::vector<float> x = activations(2, weights.k);
      const std::vector<float> y = run(pack, weights, x, 2);
      const std::vector<float> added = run(pack, weights, x, 2, {}, ATLAS_EPILOGUE_ADD);
      for (uint32_t row = 0; row < 2; ++row) {
        for (uint32_t output = 0; output < weights.n; ++output) {
          double exact = 0;
          double size = 0;
          for (uint32_t i = 0; i < weights.k; ++i) {
            const double term = double{weights.at(output, i)} * x[row * (weights.k + kPadding) + i];
            exact += term;
            size += std::fabs(term);
          }
          const size_t at = row * (weights.n + kPadding) + output;
          REQUIRE(std::fabs(y[at] - exact) <= 1e-6 * size);
          REQUIRE(added[at] == kUntouched + y[at]);
        }
      }
    }
  }

  TEST_CASE("linear float: infinities and NaN pass through without harm to other rows") {
    const CpuPack pack;
    const FloatWeights weights(FloatLayout::kBF16, 20, 64);
    std::vector<float> x = activations(3, weights.k);
    const std::vector<float> before = run(pack, weights, x, 3);
    x[weights.k + kPadding + 5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> after = run(pack, weights, x, 3);
    for (size_t i = 0; i < after.size(); ++i) {
      const size_t stride = weights.n + kPadding;
      const bool poisoned = i / stride == 1 && i % stride < weights.n;
      REQUIRE((poisoned ? std::isnan(after[i]) : after[i] == before[i]));
    }
  }
}

}  // namespace atlas::test
