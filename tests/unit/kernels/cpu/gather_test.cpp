// Rows of W by id: exactly the decoded floats, in every format.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/cpu_pack.h"
#include "tests/support/float_weights.h"
#include "tests/support/gguf_weights.h"

namespace atlas::test {
namespace {

/// Ids are the second of three words, as they may stand in a struct.
std::vector<float> run(const CpuPack& pack, const std::string& format, const Aligned& weight,
                       uint32_t n, uint32_t k, const std::vector<uint32_t>& ids) {
  std::vector<uint32_t> words(3 * ids.size());
  for (size_t i = 0; i < ids.size(); ++i) words[3 * i + 1] = ids[i];
  const auto rows = static_cast<uint32_t>(ids.size());
  std::vector<float> y((k + 1) * ids.size(), -1.0f);
  kernels::GatherParams params{};
  params.weight = weight.data();
  params.ids = words.data() + 1;
  params.y = y.data();
  params.row_count = &rows;
  params.y_stride = k + 1;
  params.id_stride = 12;
  params.n = n;
  params.k = k;
  pack.run("gather_" + format, params, rows + 2, Split{2, 1});
  return y;
}

const std::vector<uint32_t> kIds = {0, 18, 5, 16, 18, 7};

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("gather: block formats give the checkpoint's floats") {
    const CpuPack pack;
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      CAPTURE(format.name);
      CHECK(pack.params_digest(std::string("gather_") + format.name) ==
            kernels::kGatherParamsDigest);
      const GgufWeights weights(format, 19, 2 * format.layout.block());
      const auto y = run(pack, format.name, weights.packed, weights.n, weights.k, kIds);
      for (size_t row = 0; row < kIds.size(); ++row) {
        const std::vector<float> expected = weights.decode(kIds[row]);
        for (uint32_t i = 0; i < weights.k; ++i) {
          REQUIRE(y[row * (weights.k + 1) + i] == expected[i]);
        }
        REQUIRE(y[row * (weights.k + 1) + weights.k] == -1.0f);
      }
    }
  }

  TEST_CASE("gather: floating-point weights keep their numbers, an odd k included") {
    const CpuPack pack;
    for (const auto layout :
         {kernels::FloatLayout::kF32, kernels::FloatLayout::kF16, kernels::FloatLayout::kBF16}) {
      CAPTURE(name_of(layout));
      const FloatWeights weights(layout, 19, 77);
      const auto y = run(pack, name_of(layout), weights.packed, weights.n, weights.k, kIds);
      for (size_t row = 0; row < kIds.size(); ++row) {
        for (uint32_t i = 0; i < weights.k; ++i) {
          REQUIRE(y[row * (weights.k + 1) + i] == weights.at(kIds[row], i));
        }
      }
    }
  }

  TEST_CASE("gather: an id that is no row becomes NaN") {
    const CpuPack pack;
    const GgufWeights weights(block_format("q8_0"), 19, 32);
    const auto y = run(pack, "q8_0", weights.packed, weights.n, weights.k, {19, 4294967295u, 3});
    for (uint32_t i = 0; i < 32; ++i) {
      CHECK(std::isnan(y[i]));
      CHECK(std::isnan(y[33 + i]));
      CHECK_FALSE(std::isnan(y[66 + i]));
    }
  }
}

}  // namespace atlas::test
