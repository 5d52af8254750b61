// Products with bf16, f16 and float32 weights on every GPU platform, and the input encoding of all
// products: product_suite.h says what is checked.
#include <doctest/doctest.h>

#include "kernels/common/gpu_float.h"
#include "tests/conformance/gpu/product_suite.h"
#include "tests/support/float_weights.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

GpuWeights float_weights(FloatLayout layout, uint32_t n, uint32_t k) {
  const FloatWeights source(layout, n, k, n + k);
  GpuWeights weights{name_of(layout), n, k, gpu_float_wide(layout), source.values, {}};
  weights.divides = true;
  if (layout == FloatLayout::kBF16) weights.wgmma_bytes = 2 * gpu_float_unit_bytes(layout);
  weights.parts = layout == FloatLayout::kBF16 ? 1 : (layout == FloatLayout::kF16 ? 2 : 3);
  const uint64_t row_bytes = uint64_t{k} * float_bytes(layout);
  for (const MatrixFamily family : {MatrixFamily::kMma, MatrixFamily::kWmma}) {
    auto& packed = weights.packed[static_cast<uint32_t>(family)];
    packed.resize(tiles_of(n) * gpu_float_group_bytes(layout, k), 0xc3);
    for (uint32_t group = 0; group < tiles_of(n); ++group) {
      const uint8_t* rows[kTileOutputs] = {};
      for (uint32_t r = 0; r < kTileOutputs && group * kTileOutputs + r < n; ++r) {
        rows[r] = source.bytes.data() + (group * kTileOutputs + r) * row_bytes;
      }
      pack_gpu_floats(family, layout, rows, k,
                      packed.data() + group * gpu_float_group_bytes(layout, k));
    }
  }
  return weights;
}

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
