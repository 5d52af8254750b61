// Products with bf16, f16 and float32 weights on every GPU platform, and the input encoding of all
// products: product_suite.h says what is checked.
#include <doctest/doctest.h>

#include <numeric>

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

  TEST_CASE("gpu: products in f16: values, and one row's bits among any others") {
    for (const FloatLayout layout : {FloatLayout::kBF16, FloatLayout::kF16}) {
      for (const auto& [n, k, rows] : {std::array{1u, 1u, 1u}, {40u, 77u, 19u}, {150u, 580u, 3u}}) {
        const GpuWeights weights = half_weights(layout, n, k);
        for (const char* platform : kGpuPlatforms) ProductSuite(platform, weights).check(rows);
      }
    }
  }

  TEST_CASE("gpu: products in f16 take bf16 weights of any size, a row at a time") {
    constexpr uint32_t kN = 20, kK = 300;
    FloatWeights source(FloatLayout::kBF16, kN, kK, 8);
    for (uint32_t row = 0; row < kN; ++row) {
      // Rows from the smallest numbers to the largest, within a row from one to 2^-30 of it; one of
      // zeros, and one of numbers below all normal ones.
      for (uint32_t i = 0; i < kK; ++i) {
        const double size =
            row == 3 ? 0.0
            : row == 5
                ? 0x1p-130
                : std::ldexp(1.0, static_cast<int>(row * 12) - 120 - static_cast<int>(i % 31));
        const auto bits = bf16_bits(static_cast<float>(size * (i % 2 == 0 ? 1.2890625 : -1.5)));
        std::memcpy(source.bytes.data() + 2 * (size_t{row} * kK + i), &bits, 2);
        source.values[size_t{row} * kK + i] = bf16_to_f32(bits);
      }
    }
    const GpuWeights weights = half_weights(source);
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      ProductSuite suite(platform, weights);
      // Every number comes back as it was; the products of the smallest rows are too small for
      // check_values to see.
      std::vector<uint32_t> ids(kN);
      std::iota(ids.begin(), ids.end(), 0u);
      CHECK(same_bits(suite.gather(ids), weights.values));
      const std::vector<float> x = normal_values(3 * kK, 12);
      suite.check_values(x, suite.linear(x, 0, 3, false).y);
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

  TEST_CASE("gpu: products of many runs give the same bits however k is divided") {
    for (const bool half : {false, true}) {
      const GpuWeights weights = half ? half_weights(FloatLayout::kBF16, 40, 2600)
                                      : float_weights(FloatLayout::kBF16, 40, 2600);
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        CAPTURE(half);
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
  }

  TEST_CASE("gpu: rows are encoded for wgmma where the encoding says") {
    for (const auto& [k, f16] :
         {std::pair{1u, false}, {77u, false}, {640u, false}, {1u, true}, {77u, true}}) {
      CAPTURE(k);
      CAPTURE(f16);
      constexpr uint32_t kRows = 35;
      GpuMachine machine("h200");
      std::vector<float> x = normal_values(size_t{kRows} * k, k);
      if (f16) {  // too large, just not, and too small for a normal number
        x[0] = -7e7f;
        x[k] = 65519.0f;
        x[2 * k] = 3e-6f;
      }
      const uint64_t row_bytes = wgmma_row_bytes(k);
      EncodeParams params{};
      params.x = machine.input("x", x);
      params.out = machine.output<uint8_t>("encoded", wgmma_places(kRows) * row_bytes);
      params.row_count = machine.input("rows", std::vector<uint32_t>{kRows});
      params.x_stride = params.k = k;
      params.out_row_bytes = row_bytes;
      const ProductLaunch launch = wgmma_encode_launch(k, kRows + 9);
      const auto report =
          machine.run(f16 ? kEncodeHalfWgmma : kEncodeWgmma, params, kEncodeParamsDigest,
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
          const float number = i < k ? x[row * k + i] : 0.0f;
          const uint16_t bits = f16 ? f16_bits(number) : bf16_bits(number);
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

  TEST_CASE("gpu: products in f16 by wgmma") {
    for (const auto& [n, k] : {std::array{150u, 330u}, {257u, 1100u}}) {
      const GpuWeights weights = half_weights(FloatLayout::kBF16, n, k);
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
    const GpuWeights halves = half_weights(FloatLayout::kBF16, 72, 1504);
    for (const char* platform : kGpuPlatforms) ProductSuite(platform, halves).check_traffic();
  }
}

}  // namespace atlas::test
