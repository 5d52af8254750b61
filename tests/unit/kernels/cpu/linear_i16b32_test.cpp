// Products of block formats with encoded rows: every instruction set against a scalar walk of the
// contract, bit for bit (so AVX-512, AVX2 and the portable code agree), and against float64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/i16b32.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/gguf_weights.h"

namespace atlas::test {
namespace {

using kernels::I16B32Block;
using kernels::PackedScales;

/// Rows of activations, plain and encoded.
struct Input {
  Input(uint32_t rows, uint32_t columns, uint32_t seed = 5)
      : m(rows), k(columns), x(size_t{m} * k), encoded(size_t{m} * k / 32) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    encode();
  }
  void encode() {
    for (size_t b = 0; b < encoded.size(); ++b) {
      kernels::encode_i16b32_block(x.data() + b * 32, &encoded[b]);
    }
  }
  const I16B32Block& block(uint32_t row, uint32_t b) const {
    return encoded[size_t{row} * (k / 32) + b];
  }
  uint32_t m, k;
  std::vector<float> x;
  std::vector<I16B32Block> encoded;
};

struct Product {
  const GgufWeights& weights;
  const Input& input;
  Split split = {};
  uint32_t epilogue = ATLAS_EPILOGUE_NONE;
  uint32_t rows = input.m;
  size_t padding = 3;  // elements between the rows of y, which must stay as they are
};

constexpr float kUntouched = -7.25f;

std::vector<float> run(const CpuPack& pack, const Product& product, float start = kUntouched) {
  const size_t stride = product.weights.n + product.padding;
  std::vector<float> y(stride * product.input.m, start);
  kernels::LinearParams params{};
  params.x = product.input.encoded.data();
  params.weight = product.weights.packed.data();
  params.y = y.data();
  params.row_count = &product.rows;
  params.x_row_bytes = kernels::i16b32_row_bytes(product.input.k);
  params.y_stride = stride;
  params.n = product.weights.n;
  params.k = product.weights.k;
  params.epilogue = product.epilogue;
  pack.run(std::string("linear_") + product.weights.format.name, params,
           kernels::linear_tasks(params.n), product.split);
  return y;
}

/// One output as the contract says, with the scalar access to the resident layout.
float contract(const Product& product, uint32_t row, uint32_t output) {
  const kernels::PackedLayout& layout = product.weights.format.layout;
  const auto* group = reinterpret_cast<const uint8_t*>(product.weights.packed.data()) +
                      output / 16 * layout.group_bytes(product.weights.k);
  const uint32_t lane = output % 16;
  float sum = 0.0f;
  for (uint32_t b = 0; b < product.weights.k / 32; ++b) {
    const uint8_t* unit = group + b / layout.subs() * layout.unit_bytes();
    const uint8_t* sub = unit + layout.head_bytes() + b % layout.subs() * layout.sub_bytes();
    const I16B32Block& x = product.input.block(row, b);
    int64_t dots[2] = {0, 0};
    for (uint32_t e = 0; e < 32; ++e) {
      const int32_t code = kernels::packed_code(layout, sub, lane, e) - layout.zero;
      dots[e / 16] += int64_t{code} * x.code[kernels::i16b32_position(e)];
    }
    const float d = kernels::load_f16((layout.large() ? unit : sub) + 2 * lane);
    const float m =
        layout.has_min() ? kernels::load_f16((layout.large() ? unit : sub) + 32 + 2 * lane) : 0.0f;
    if (layout.scales == PackedScales::kByteHalves) {
      for (int half = 0; half < 2; ++half) {
        const float scale = d * static_cast<float>(static_cast<int8_t>(sub[16 * half + lane]));
        sum = std::fma(scale * x.scale, static_cast<float>(dots[half]), sum);
      }
      continue;
    }
    const bool bytes = layout.scales == PackedScales::kByteMin;
    const float scale = bytes ? d * static_cast<float>(sub[lane]) : d;
    sum = std::fma(scale * x.scale, static_cast<float>(dots[0] + dots[1]), sum);
    if (layout.has_min()) {
      sum = std::fma(bytes ? -(m * static_cast<float>(sub[16 + lane])) : m, x.sum, sum);
    }
  }
  return sum;
}

/// Compares all of y with the scalar walk.
void check_contract(const Product& product, const std::vector<float>& y) {
  const size_t stride = product.weights.n + product.padding;
  size_t wrong = 0;
  for (uint32_t row = 0; row < product.input.m; ++row) {
    for (uint32_t i = 0; i < stride; ++i) {
      const bool written = row < product.rows && i < product.weights.n;
      const float expected = written ? contract(product, row, i) : kUntouched;
      wrong += y[row * stride + i] != expected ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE(
      "linear: every format and instruction set has the contract's bits, odd sizes included") {
    const CpuPack pack;
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      CHECK(pack.params_digest(std::string("linear_") + format.name) ==
            kernels::kLinearParamsDigest);
      for (const auto& [n, blocks] : {std::pair{1u, 1u}, {37u, 3u}, {48u, 2u}}) {
        const GgufWeights weights(format, n, blocks * format.layout.block());
        for (const uint32_t m : {1u, 2u, 3u, 7u, 9u, 23u}) {
          const Input input(m, weights.k);
          for (const CpuTarget& target : cpu_targets()) {
            const ForcedTarget forced(target);
            CAPTURE(format.name);
            CAPTURE(target.name);
            CAPTURE(n);
            CAPTURE(weights.k);
            CAPTURE(m);
            const Product product{weights, input};
            check_contract(product, run(pack, product));
          }
        }
      }
    }
  }

  TEST_CASE("linear: a row has the same bits alone, among many, and for any split of the tasks") {
    const CpuPack pack;
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      CAPTURE(format.name);
      const uint32_t k = format.layout.large() ? 1536 : 576 + 32;
      const GgufWeights weights(format, 2100, k - k % format.layout.block());
      const Input input(64, weights.k);
      const std::vector<float> all = run(pack, {weights, input});
      CHECK(run(pack, {weights, input, Split{2, 1}}) == all);
      CHECK(run(pack, {weights, input, Split{3, 7}}) == all);
      for (const uint32_t m : {1u, 5u, 8u, 9u, 40u}) {
        CAPTURE(m);
        Product some{weights, input};
        some.rows = m;
        std::vector<float> expected = all;
        const size_t stride = weights.n + some.padding;
        std::fill(expected.begin() + m * stride, expected.end(), kUntouched);
        CHECK(run(pack, some) == expected);
      }
    }
  }

  TEST_CASE("linear: the epilogue add adds the finished product to y") {
    const CpuPack pack;
    for (const uint32_t m : {1u, 6u, 20u}) {
      const GgufWeights weights(block_format("q4_1"), 37, 576);
      const Input input(m, weights.k);
      const std::vector<float> plain = run(pack, {weights, input});
      Product add{weights, input};
      add.epilogue = ATLAS_EPILOGUE_ADD;
      const std::vector<float> added = run(pack, add, 0.375f);
      const size_t stride = weights.n + add.padding;
      for (size_t i = 0; i < added.size(); ++i) {
        REQUIRE(added[i] == (i % stride < weights.n ? 0.375f + plain[i] : 0.375f));
      }
    }
  }

  TEST_CASE("linear: against float64 of the decoded weights the error is that of 16-bit codes") {
    const CpuPack pack;
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      for (const uint32_t blocks : {1u, 18u, 48u}) {
        const uint32_t k =
            std::max(32 * blocks / format.layout.block(), 1u) * format.layout.block();
        const GgufWeights weights(format, 33, k);
        const Input input(3, k);
        const std::vector<float> y = run(pack, {weights, input});
        for (uint32_t i = 0; i < weights.n; ++i) {
          const std::vector<float> w = weights.decode(i);
          for (uint32_t row = 0; row < input.m; ++row) {
            double exact = 0;
            double size = 0;
            for (uint32_t j = 0; j < k; ++j) {
              const double term = double{w[j]} * input.x[row * k + j];
              exact += term;
              size += std::fabs(term);
            }
            CAPTURE(format.name);
            CAPTURE(k);
            CAPTURE(i);
            REQUIRE(std::fabs(y[row * (weights.n + 3) + i] - exact) <= 1e-4 * size);
          }
        }
      }
    }
  }

  TEST_CASE("linear: a row that is not finite gives NaN, and leaves its neighbours alone") {
    const CpuPack pack;
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      CAPTURE(format.name);
      const GgufWeights weights(format, 18, 2 * format.layout.block());
      Input input(11, weights.k);
      const std::vector<float> before = run(pack, {weights, input});
      input.x[4 * weights.k + 7] = std::numeric_limits<float>::infinity();
      input.encode();
      const std::vector<float> after = run(pack, {weights, input});
      const size_t stride = weights.n + 3;
      for (size_t i = 0; i < after.size(); ++i) {
        const bool poisoned = i / stride == 4 && i % stride < weights.n;
        REQUIRE((poisoned ? std::isnan(after[i]) : after[i] == before[i]));
      }
    }
  }

  TEST_CASE("linear: no rows write nothing") {
    const CpuPack pack;
    const GgufWeights weights(block_format("q5_k"), 16, 256);
    const Input input(2, weights.k);
    Product product{weights, input};
    product.rows = 0;
    for (const float value : run(pack, product)) CHECK(value == kUntouched);
  }
}

}  // namespace atlas::test
