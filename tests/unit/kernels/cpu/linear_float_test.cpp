// Products with float32 rows, of floating-point weights and of decoded blocks: every instruction
// set against a scalar walk of the contract "f32", bit for bit, and against float64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/cpu_linear.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/float_weights.h"
#include "tests/support/gguf_weights.h"

namespace atlas::test {
namespace {

using kernels::FloatLayout;

/// Weights of any kind: their numbers, and packed for a kernel.
struct Weights {
  explicit Weights(const FloatWeights& weights)
      : kernel(std::string("linear_") + name_of(weights.layout)),
        n(weights.n),
        k(weights.k),
        values(weights.values),
        packed(weights.packed.data(), weights.packed.data() + weights.packed.size()) {}
  explicit Weights(const GgufWeights& weights)
      : kernel(std::string("linear_") + weights.format.name + "_f32"),
        n(weights.n),
        k(weights.k),
        packed(weights.packed.data(), weights.packed.data() + weights.packed.size()) {
    for (uint32_t i = 0; i < n; ++i) {
      const std::vector<float> row = weights.decode(i);
      values.insert(values.end(), row.begin(), row.end());
    }
  }
  float at(uint32_t row, uint32_t i) const { return values[size_t{row} * k + i]; }

  std::string kernel;
  uint32_t n, k;
  std::vector<float> values;
  std::vector<std::byte> packed;
};

/// One of each format, `n` x about `k`.
std::vector<Weights> all_weights(uint32_t n, uint32_t k) {
  std::vector<Weights> all;
  for (const auto layout : {FloatLayout::kF32, FloatLayout::kF16, FloatLayout::kBF16}) {
    all.emplace_back(FloatWeights(layout, n, k));
  }
  for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
    const uint32_t block = format.layout.block();
    all.emplace_back(GgufWeights(format, n, std::max(1u, k / block) * block));
  }
  return all;
}

constexpr float kUntouched = -7.25f;
constexpr size_t kPadding = 3;  // elements behind each row of x and y

std::vector<float> activations(uint32_t m, uint32_t k) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{m} * (k + kPadding));
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<float> run(const CpuPack& pack, const Weights& weights, const std::vector<float>& x,
                       uint32_t m, Split split = {}, uint32_t epilogue = ATLAS_EPILOGUE_NONE) {
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
  pack.run(weights.kernel, params, kernels::linear_tasks(params.n), split);
  return y;
}

float contract(const Weights& weights, const float* x, uint32_t output) {
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

/// Elements of y that differ from the scalar walk, or were written though they are no outputs.
size_t wrong_bits(const Weights& weights, const std::vector<float>& x,
                  const std::vector<float>& y) {
  const size_t stride = weights.n + kPadding;
  size_t wrong = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const auto output = static_cast<uint32_t>(i % stride);
    const float* row = x.data() + i / stride * (weights.k + kPadding);
    const float expected = output < weights.n ? contract(weights, row, output) : kUntouched;
    wrong += y[i] != expected ? 1 : 0;
  }
  return wrong;
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("linear float: every instruction set has the contract's bits, odd sizes included") {
    const CpuPack pack;
    for (const auto& [columns, n] : {std::pair{1u, 1u}, {33u, 37u}, {256u, 48u}, {643u, 17u}}) {
      for (const Weights& weights : all_weights(n, columns)) {
        CHECK(pack.params_digest(weights.kernel) == kernels::kLinearParamsDigest);
        for (const uint32_t m : {1u, 3u, 9u, 47u}) {
          const std::vector<float> x = activations(m, weights.k);
          for (const CpuTarget& target : cpu_targets()) {
            const ForcedTarget forced(target);
            CAPTURE(weights.kernel);
            CAPTURE(target.name);
            CAPTURE(n);
            CAPTURE(weights.k);
            CAPTURE(m);
            CHECK(wrong_bits(weights, x, run(pack, weights, x, m)) == 0);
          }
        }
      }
    }
  }

  TEST_CASE("linear float: a row has the same bits alone, among many, and for any split") {
    const CpuPack pack;
    for (const Weights& weights : all_weights(1100, 576)) {
      CAPTURE(weights.kernel);
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
    for (const Weights& weights : all_weights(33, 1536)) {
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
    const Weights weights(FloatWeights(FloatLayout::kBF16, 20, 64));
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
