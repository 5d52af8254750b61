// linear_bf16 of every GPU pack in the emulator: against float64, bits alike for one row and many,
// the matrix instructions that it is made of, and the bytes of weights that it reads.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "kernels/common/codecs.h"
#include "kernels/common/gpu_grids.h"
#include "plugins/abi/atlas_plugin.h"
#include "tests/support/numbers.h"
#include "tests/support/simt/emulated_pack.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;
using simt::Machine;
using simt::Matrix;

uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

bool is_wmma(const std::string& platform) { return platform == "strix-hip"; }

struct Product {
  uint32_t n, k;
  std::vector<uint16_t> weight;    // [n, k] bf16
  std::vector<uint8_t> packed[2];  // for mma.sync, for WMMA

  Product(uint32_t outputs, uint32_t inputs) : n(outputs), k(inputs) {
    for (const float w : normal_values(size_t{n} * k, n + k)) weight.push_back(bf16_bits(w));
    for (const Bf16Tiles tiles : {Bf16Tiles::kMmaSync, Bf16Tiles::kWmma}) {
      std::vector<uint8_t>& to = packed[static_cast<int>(tiles)];
      to.resize(tiles_of(n) * bf16_group_bytes(k));
      for (uint32_t group = 0; group < tiles_of(n); ++group) {
        const uint8_t* rows[kTileEdge] = {};
        for (uint32_t r = 0; r < kTileEdge && group * kTileEdge + r < n; ++r) {
          rows[r] =
              reinterpret_cast<const uint8_t*>(weight.data() + (group * kTileEdge + r) * size_t{k});
        }
        pack_bf16_tiles(tiles, rows, k, to.data() + group * bf16_group_bytes(k));
      }
    }
  }
};

struct Result {
  std::vector<float> y;
  simt::Report report;
};

/// Rows [first, first + rows) of x, each `stride` floats from the next, in one launch.
Result run(const std::string& platform, const Product& product, const std::vector<float>& x,
           uint32_t stride, uint32_t first, uint32_t rows, uint64_t seed,
           const std::vector<float>* added = nullptr) {
  const EmulatedPack pack(platform);
  Machine machine;
  const std::vector<float> taken(x.begin() + first * stride, x.begin() + (first + rows) * stride);
  float* y = added != nullptr ? machine.in_out("y", *added)
                              : machine.output<float>("y", size_t{rows} * product.n);
  LinearParams params{};
  params.x = machine.input("x", taken);
  params.weight = machine.input("weight", product.packed[is_wmma(platform) ? 1 : 0]);
  params.y = y;
  params.row_count = machine.input("row_count", std::vector<uint32_t>{rows});
  params.x_row_bytes = stride * sizeof(float);
  params.y_stride = product.n;
  params.n = product.n;
  params.k = product.k;
  params.epilogue = added != nullptr ? ATLAS_EPILOGUE_ADD : ATLAS_EPILOGUE_NONE;
  // A tile of rows more than there are: its blocks do nothing.
  auto report = machine.run(
      pack.kernel("linear_bf16"), params,
      {{tiles_of(product.n), tiles_of(rows) + 1, 1}, 0, kLinearSharedBytes, false, seed});
  return {machine.contents(y, std::numeric_limits<float>::quiet_NaN()), std::move(report)};
}

double exact(const Product& product, const float* x, uint32_t output) {
  double sum = 0;
  for (uint32_t i = 0; i < product.k; ++i) {
    sum += double{bf16_to_f32(bf16_bits(x[i]))} *
           bf16_to_f32(product.weight[size_t{output} * product.k + i]);
  }
  return sum;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: linear_bf16 against float64, at odd sizes") {
    for (const auto& [n, k] :
         {std::pair{1u, 1u}, {16u, 16u}, {17u, 31u}, {33u, 257u}, {16u, 576u}, {24u, 2561u}}) {
      const Product product(n, k);
      for (const char* platform : kGpuPlatforms) {
        for (const uint32_t rows : {1u, 3u, 9u, 16u, 21u}) {
          CAPTURE(platform);
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(rows);
          // Strides of both parities: rows that are aligned to 8 bytes, and rows that are not.
          const uint32_t stride = k + rows % 2;
          const std::vector<float> x = normal_values(size_t{rows} * stride, rows);
          const Result result = run(platform, product, x, stride, 0, rows, rows);
          INFO(result.report.text());
          REQUIRE(result.report.ok());
          std::vector<double> expected;
          for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t o = 0; o < n; ++o)
              expected.push_back(exact(product, x.data() + r * stride, o));
          }
          CHECK(largest_difference(result.y, expected) < 1e-5 * std::sqrt(k));
        }
      }
    }
  }

  TEST_CASE("gpu: linear_bf16 gives a row the same bits alone and among others, in any order") {
    const Product product(40, 700);
    const std::vector<float> x = normal_values(20 * product.k, 5);
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      const Result together = run(platform, product, x, product.k, 0, 20, 0);
      CHECK(same_bits(run(platform, product, x, product.k, 0, 20, 7).y, together.y));
      for (const uint32_t row : {0u, 7u, 8u, 19u}) {
        const Result alone = run(platform, product, x, product.k, row, 1, row);
        const std::vector<float> part(together.y.begin() + row * product.n,
                                      together.y.begin() + (row + 1) * product.n);
        CHECK(same_bits(alone.y, part));
      }
    }
  }

  TEST_CASE("gpu: linear_bf16 adds to y") {
    const Product product(20, 300);
    const std::vector<float> x = normal_values(2 * product.k, 6),
                             y = normal_values(2 * product.n, 7);
    for (const char* platform : kGpuPlatforms) {
      const Result plain = run(platform, product, x, product.k, 0, 2, 0);
      Result added = run(platform, product, x, product.k, 0, 2, 0, &y);
      REQUIRE(added.report.ok());
      std::vector<float> expected = plain.y;
      for (size_t i = 0; i < y.size(); ++i) expected[i] = y[i] + plain.y[i];
      CHECK(same_bits(added.y, expected));
    }
  }

  TEST_CASE("gpu: linear_bf16 is made of matrix instructions, and reads weights once") {
    const Product product(64, 2560);
    for (const char* platform : kGpuPlatforms) {
      for (const uint32_t rows : {1u, 8u, 16u}) {
        CAPTURE(platform);
        CAPTURE(rows);
        const std::vector<float> x = normal_values(rows * product.k, 8);
        const Result result = run(platform, product, x, product.k, 0, rows, 0);
        REQUIRE(result.report.ok());
        const uint64_t tiles = uint64_t{tiles_of(product.n)} * tiles_of(product.k);
        const Matrix kind = is_wmma(platform) ? Matrix::kWmmaBf16 : Matrix::kMmaBf16;
        CHECK(result.report.matrix_count(kind) == tiles * (!is_wmma(platform) && rows > 8 ? 2 : 1));
        CHECK(result.report.of("weight").fetched_bytes <= 1.1 * product.weight.size() * 2);
      }
    }
  }
}

}  // namespace atlas::test
