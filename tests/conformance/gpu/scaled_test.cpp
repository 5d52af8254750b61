// Products with NVFP4 and FP8 weights on every GPU platform: product_suite.h says what is checked.
#include <doctest/doctest.h>

#include <random>

#include "kernels/common/gpu_fp8.h"
#include "kernels/common/gpu_nvfp4.h"
#include "tests/conformance/gpu/product_suite.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

/// Calls pack(family, first row, number of rows, out) for each group of 16 outputs.
template <class Pack>
void pack_groups(GpuWeights& weights, uint64_t group_bytes, const Pack& pack) {
  for (const MatrixFamily family : {MatrixFamily::kMma, MatrixFamily::kWmma}) {
    auto& packed = weights.packed[static_cast<uint32_t>(family)];
    packed.resize(tiles_of(weights.n) * group_bytes, 0xc3);
    for (uint32_t group = 0; group < tiles_of(weights.n); ++group) {
      const uint32_t first = group * kTileOutputs;
      pack(family, first, std::min(kTileOutputs, weights.n - first),
           packed.data() + group * group_bytes);
    }
  }
}

/// Scales of every e4m3 number, subnormal ones and 0 too; all 16 codes.
GpuWeights nvfp4_weights(uint32_t n, uint32_t k) {
  GpuWeights weights{"nvfp4", n, k, {}, {}};
  weights.wgmma_bytes = kGpuNvfp4UnitBytes;
  std::mt19937 random(n + k);
  std::vector<uint8_t> codes(size_t{n} * k / 2), scales(size_t{n} * k / 16);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(random() % 0x7f);
  constexpr float kMatrix = 0.0173f;
  for (size_t i = 0; i < size_t{n} * k; ++i) {
    const auto code = static_cast<uint8_t>(codes[i / 2] >> 4 * (i % 2) & 15);
    const float value = e2m1_to_f32(code) * e4m3_to_f32(scales[i / 16]) * kMatrix;
    weights.values.push_back(value == 0.0f && scales[i / 16] == 0 ? 0.0f : value);
  }
  pack_groups(weights, gpu_nvfp4_group_bytes(k),
              [&](MatrixFamily family, uint32_t first, uint32_t rows, uint8_t* out) {
                const uint8_t* code_rows[kTileOutputs] = {};
                const uint8_t* scale_rows[kTileOutputs] = {};
                for (uint32_t r = 0; r < rows; ++r) {
                  code_rows[r] = codes.data() + size_t{first + r} * k / 2;
                  scale_rows[r] = scales.data() + size_t{first + r} * k / 16;
                }
                pack_gpu_nvfp4(family, code_rows, scale_rows, kMatrix, k, out);
              });
  return weights;
}

constexpr const char* kFp8Names[] = {"fp8", "fp8_b128", "mxfp8"};

/// All e4m3 numbers but NaN.
GpuWeights fp8_weights(Fp8Scales kind, uint32_t n, uint32_t k) {
  GpuWeights weights{kFp8Names[static_cast<int>(kind)], n, k, {}, {}};
  if (kind != Fp8Scales::kMx) weights.wgmma_bytes = 2 * kGpuFp8UnitBytes;
  std::mt19937 random(n + k);
  std::vector<uint8_t> codes(size_t{n} * k);
  for (uint8_t& code : codes) {
    do code = static_cast<uint8_t>(random());
    while ((code & 0x7f) == 0x7f);
  }
  // A scale for each row, block of 128 x 128, or 32 of a row.
  const uint32_t columns = kind == Fp8Scales::kRow     ? 1
                           : kind == Fp8Scales::kBlock ? (k + 127) / 128
                                                       : k / 32;
  const auto scale_row = [&](uint32_t row) { return kind == Fp8Scales::kBlock ? row / 128 : row; };
  std::vector<float> scales(size_t{scale_row(n - 1) + 1} * columns);
  for (float& scale : scales) {
    scale = kind == Fp8Scales::kMx ? std::ldexp(1.0f, static_cast<int>(random() % 20) - 16)
                                   : 0.001f * static_cast<float>(1 + random() % 1000);
  }
  for (uint32_t row = 0; row < n; ++row) {
    for (uint32_t i = 0; i < k; ++i) {
      const uint32_t column = kind == Fp8Scales::kRow     ? 0
                              : kind == Fp8Scales::kBlock ? i / 128
                                                          : i / 32;
      weights.values.push_back(e4m3_to_f32(codes[size_t{row} * k + i]) *
                               scales[size_t{scale_row(row)} * columns + column]);
    }
  }
  pack_groups(weights, gpu_fp8_group_bytes(kind, k),
              [&](MatrixFamily family, uint32_t first, uint32_t rows, uint8_t* out) {
                const uint8_t* code_rows[kTileOutputs] = {};
                for (uint32_t r = 0; r < rows; ++r) {
                  code_rows[r] = codes.data() + size_t{first + r} * k;
                  const float* from = scales.data() + size_t{scale_row(first + r)} * columns;
                  store_gpu_fp8_scales(family, kind, r, from, columns, out);
                }
                pack_gpu_fp8_codes(family, kind, code_rows, k, out);
              });
  return weights;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: products with NVFP4 and FP8 by wgmma") {
    const GpuWeights weights = nvfp4_weights(150, 592);
    ProductSuite("h200", weights).check_wgmma();
    for (const Fp8Scales kind : {Fp8Scales::kRow, Fp8Scales::kBlock}) {
      const GpuWeights scaled = fp8_weights(kind, 150, 333);
      ProductSuite("h200", scaled).check_wgmma();
    }
  }

  TEST_CASE("gpu: products with NVFP4") {
    for (const auto& [n, k, rows] : {std::array{7u, 16u, 2u}, {70u, 592u, 18u}}) {
      const GpuWeights weights = nvfp4_weights(n, k);
      for (const char* platform : kGpuPlatforms) ProductSuite(platform, weights).check(rows);
    }
    const GpuWeights weights = nvfp4_weights(72, 1536);
    for (const char* platform : kGpuPlatforms) ProductSuite(platform, weights).check_traffic();
  }

  TEST_CASE("gpu: products with FP8, scales of rows, of blocks and of 32 elements") {
    for (const Fp8Scales kind : {Fp8Scales::kRow, Fp8Scales::kBlock, Fp8Scales::kMx}) {
      const bool mx = kind == Fp8Scales::kMx;
      for (const auto& [n, k, rows] :
           {std::array{5u, mx ? 32u : 3u, 1u}, {150u, mx ? 352u : 333u, 18u}}) {
        const GpuWeights weights = fp8_weights(kind, n, k);
        for (const char* platform : kGpuPlatforms) ProductSuite(platform, weights).check(rows);
      }
      const GpuWeights weights = fp8_weights(kind, 72, 1504);
      for (const char* platform : kGpuPlatforms) ProductSuite(platform, weights).check_traffic();
    }
  }
}

}  // namespace atlas::test
