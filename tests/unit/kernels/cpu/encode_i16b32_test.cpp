// The encoding of activations: every instruction set against the scalar definition, bit for bit.
#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <vector>

#include "kernels/common/i16b32.h"
#include "kernels/common/linear.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"

namespace atlas::test {
namespace {

using kernels::I16B32Block;

std::vector<std::byte> encode(const CpuPack& pack, const std::vector<float>& x, uint32_t rows,
                              uint32_t k, Split split = {}) {
  const uint64_t row_bytes = kernels::i16b32_row_bytes(k);
  std::vector<std::byte> out(row_bytes * rows + 16, std::byte{0x5a});
  kernels::EncodeParams params{};
  params.x = x.data();
  params.out = out.data();
  params.row_count = &rows;
  params.x_stride = k;
  params.out_row_bytes = row_bytes;
  params.k = k;
  pack.run("encode_i16b32", params, rows + 3, split);  // the grid is a bound, rows the count
  return out;
}

std::vector<float> hard_rows(uint32_t rows, uint32_t k) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{rows} * k);
  for (float& value : x) value = normal(random);
  for (uint32_t i = 0; i < 32; ++i) {
    x[i] = 0.0f;                                                          // all zero
    x[32 + i] = normal(random) * 1e-38f;                                  // below the smallest
    x[64 + i] = normal(random) * 1e37f;                                   // huge
    x[96 + i] = static_cast<float>(i) + 0.5f;                             // ties
    x[128 + i] = i == 9 ? std::numeric_limits<float>::infinity() : 1.0f;  // not finite
    x[160 + i] = i == 31 ? std::numeric_limits<float>::quiet_NaN() : 1e9f;
    x[192 + i] = i == 0 ? -32767.0f : static_cast<float>(i) * 1000.5f;  // scale 1
    x[224 + i] = i == 3 ? std::numeric_limits<float>::max() : -1.0f;
  }
  return x;
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("encode_i16b32: every instruction set gives the bits of the scalar definition") {
    const CpuPack pack;
    CHECK(pack.params_digest("encode_i16b32") == kernels::kEncodeParamsDigest);
    constexpr uint32_t kRows = 5;
    constexpr uint32_t kColumns = 288;
    const std::vector<float> x = hard_rows(kRows, kColumns);
    std::vector<I16B32Block> expected(kRows * kColumns / 32);
    for (size_t b = 0; b < expected.size(); ++b) {
      kernels::encode_i16b32_block(x.data() + b * 32, &expected[b]);
    }
    for (const CpuTarget& target : cpu_targets()) {
      CAPTURE(target.name);
      const ForcedTarget forced(target);
      for (const Split split : {Split{1, 0}, Split{2, 1}}) {
        const auto out = encode(pack, x, kRows, kColumns, split);
        CHECK(std::memcmp(out.data(), expected.data(), expected.size() * sizeof(I16B32Block)) == 0);
        CHECK(out.back() == std::byte{0x5a});
      }
    }
  }

  TEST_CASE("encode_i16b32: codes stay within 2^-16 of the block's largest element") {
    std::mt19937 random(11);
    std::uniform_real_distribution<float> uniform(-3.0f, 3.0f);
    for (int round = 0; round < 200; ++round) {
      float x[32];
      float largest = 0.0f;
      for (float& value : x) {
        value = uniform(random);
        largest = std::max(largest, std::fabs(value));
      }
      I16B32Block block;
      kernels::encode_i16b32_block(x, &block);
      int sums[2] = {0, 0};
      for (uint32_t i = 0; i < 32; ++i) {
        const int code = block.code[kernels::i16b32_position(i)];
        sums[i / 16] += code;
        CHECK(std::abs(code) <= 32767);
        CHECK(std::fabs(double{block.scale} * code - x[i]) <= double{largest} / 65534 * 1.01);
      }
      CHECK(block.half_sums[0] == sums[0]);
      CHECK(block.half_sums[1] == sums[1]);
      CHECK(block.sum == doctest::Approx(double{block.scale} * (sums[0] + sums[1])).epsilon(1e-6));
    }
  }

  TEST_CASE("encode_i16b32: a block that is not finite makes its scale and sum NaN, its codes 0") {
    float x[32] = {1.0f, -2.0f};
    x[17] = -std::numeric_limits<float>::infinity();
    I16B32Block block;
    kernels::encode_i16b32_block(x, &block);
    CHECK(std::isnan(block.scale));
    CHECK(std::isnan(block.sum));
    for (const int16_t code : block.code) CHECK(code == 0);
  }
}

}  // namespace atlas::test
