// Products with bf16, f16 and float32 weights on every GPU platform, and the input encoding of all
// products: product_suite.h says what is checked.
#include <doctest/doctest.h>

#include "tests/conformance/gpu/float_product.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr FloatLayout kLayouts[] = {FloatLayout::kBF16, FloatLayout::kF16, FloatLayout::kF32};

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: products with floats: values, and one row's bits among any others") {
    for (const FloatLayout layout : kLayouts) {
      for (const auto& [n, k, rows] : {std::array{1u, 1u, 1u}, {40u, 77u, 19u}, {150u, 580u, 3u}}) {
        const GpuWeights weights = float_weights(layout, n, k);
        for (const char* platform : kGpuPlatforms) ProductSuite(platform, weights).check(rows);
      }
    }
  }

  TEST_CASE("gpu: products with bf16 give a row the same bits with 1 to 16 rows, and with 200") {
    const GpuWeights weights = float_weights(FloatLayout::kBF16, 33, 300);
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      ProductSuite suite(platform, weights);
      const std::vector<float> x = normal_values(200 * weights.k, 5);
      const std::vector<float> all = suite.linear(x, 0, 200, true).y;
      suite.check_values(x, all);
      for (uint32_t rows = 1; rows <= 16; ++rows) {
        const std::vector<float> y = suite.linear(x, 0, rows, false, rows).y;
        CHECK(same_bits(y, {all.begin(), all.begin() + static_cast<int64_t>(y.size())}));
      }
    }
  }

  TEST_CASE("gpu: products with bf16 of many runs give the same bits however k is divided") {
    const GpuWeights weights = float_weights(FloatLayout::kBF16, 40, 2600);
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      ProductSuite suite(platform, weights);
      const std::vector<float> x = normal_values(16 * weights.k, 6);
      const std::vector<float> y = suite.linear(x, 0, 16, false).y;
      suite.check_values(x, y);
      for (const uint32_t parts : {2u, 4u, 11u}) {
        for (const uint32_t rows : {1u, 8u, 16u}) {
          const std::vector<float> z =
              suite.linear(x, 0, rows, false, rows + parts, nullptr, parts).y;
          CHECK(same_bits(z, {y.begin(), y.begin() + static_cast<int64_t>(z.size())}));
        }
      }
    }
  }

  TEST_CASE("gpu: rows are encoded for wgmma where the encoding says") {
    for (const uint32_t k : {1u, 77u, 640u}) {
      CAPTURE(k);
      constexpr uint32_t kRows = 35;
      GpuMachine machine("h200");
      const std::vector<float> x = normal_values(size_t{kRows} * k, k);
      const uint64_t row_bytes = wgmma_row_bytes(k);
      EncodeParams params{};
      params.x = machine.input("x", x);
      params.out = machine.output<uint8_t>("encoded", wgmma_places(kRows) * row_bytes);
      params.row_count = machine.input("rows", std::vector<uint32_t>{kRows});
      params.x_stride = params.k = k;
      params.out_row_bytes = row_bytes;
      const ProductLaunch launch = wgmma_encode_launch(k, kRows + 9);
      const auto report =
          machine.run(kEncodeWgmma, params, kEncodeParamsDigest,
                      {.shape = {static_cast<uint32_t>(launch.x), static_cast<uint32_t>(launch.y),
                                 1, launch.threads, 0}});
      INFO(report.text());
      REQUIRE(report.ok());
      const std::vector<uint8_t> got =
          machine.contents(static_cast<const uint8_t*>(params.out), uint8_t{0xee});
      // Every number of a row once, zeros behind them, and nothing of rows that are not there.
      std::vector<uint8_t> expected(got.size(), 0xee);
      for (uint32_t row = 0; row < kRows; ++row) {
        for (uint32_t i = 0; i < row_bytes / 2; ++i) {
          const uint16_t bits = i < k ? bf16_bits(x[row * k + i]) : uint16_t{0};
          std::memcpy(expected.data() + wgmma_encoded_offset(row_bytes, row, i), &bits, 2);
        }
      }
      CHECK(got == expected);
    }
  }

  TEST_CASE("gpu: products with bf16 by wgmma") {
    for (const auto& [n, k] : {std::array{150u, 330u}, {257u, 1100u}}) {
      const GpuWeights weights = float_weights(FloatLayout::kBF16, n, k);
      ProductSuite("h200", weights).check_wgmma();
    }
  }

  TEST_CASE("gpu: products with floats read weights once, by matrix instructions") {
    for (const FloatLayout layout : kLayouts) {
      const GpuWeights weights = float_weights(layout, 72, 1504);
      for (const char* platform : kGpuPlatforms) {
        ProductSuite(platform, weights).check_traffic();
      }
    }
  }
}

}  // namespace atlas::test
