// Plugins "nvfp4" and "fp8" on platform "cpu". Tolerance of "nvfp4": activations have 16 bits a
// block; of "fp8": float32 sums.
#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/common/packed_float.h"
#include "tests/conformance/quant_suite.h"
#include "tests/support/scaled_weights.h"

namespace atlas::test {
namespace {

Checkpoint checkpoint_of(const ScaledWeights& w, double tolerance) {
  return {w.dtype, w.format, w.n, w.k, w.codes, w.values, tolerance, w.name, w.columns, w.more};
}

}  // namespace

TEST_SUITE("conformance/quant_nvfp4") {
  TEST_CASE("nvfp4: both tools' tensors claim, pack, multiply and gather at any multiple of 16") {
    const QuantPlugin plugin("quant_nvfp4.so");
    for (const auto& [n, k] : {std::pair{45u, 96u}, {17u, 16u}, {33u, 240u}, {130u, 640u}}) {
      for (const bool compressed : {false, true}) {
        CAPTURE(n);
        CAPTURE(k);
        CAPTURE(compressed);
        const ScaledWeights weights = nvfp4_weights(n, k, compressed, compressed ? 2811.5f : 3e-4f);
        QuantSuite suite(plugin, checkpoint_of(weights, 1e-4));
        CHECK(std::string(suite.claim().contract) == "i16b32");
        suite.check();
      }
    }
  }

  TEST_CASE("nvfp4: parts of one weight keep matrix scales of their own") {
    const QuantPlugin plugin("quant_nvfp4.so");
    const ScaledWeights gate = nvfp4_weights(32, 64, false, 0.25f, 1);
    ScaledWeights both = nvfp4_weights(64, 64, false, 0.25f, 2);
    std::copy(gate.values.begin(), gate.values.end(), both.values.begin());
    QuantSuite first(plugin, checkpoint_of(gate, 1e-4));
    const ScaledWeights up = nvfp4_weights(32, 64, false, 0.0625f, 1);
    QuantSuite second(plugin, checkpoint_of(up, 1e-4));
    // The same codes under another matrix scale: a power of two, so the products scale exactly.
    const std::vector<float> x(64, 1.5f);
    const std::vector<float> of_gate = first.product(x, 1, {});
    Aligned side_by_side(2 * first.packed().size());
    std::copy_n(first.packed().data(), first.packed().size(), side_by_side.data());
    std::copy_n(second.packed().data(), second.packed().size(),
                side_by_side.data() + first.packed().size());
    QuantSuite joined(plugin, checkpoint_of(both, 1e9));
    const std::vector<float> y = joined.product_with(side_by_side.data(), x, 1, {});
    for (uint32_t i = 0; i < 32; ++i) {
      CHECK(y[i] == of_gate[i]);
      CHECK(y[32 + i] == 0.25f * of_gate[i]);
    }
  }
}

TEST_SUITE("conformance/quant_fp8") {
  TEST_CASE("fp8: scales of a tensor, of rows, of blocks and of 32 elements, at any size") {
    const QuantPlugin plugin("quant_fp8.so");
    for (const Fp8Kind kind : {Fp8Kind::kTensor, Fp8Kind::kRow, Fp8Kind::kRowFlat,
                               Fp8Kind::kBlockF32, Fp8Kind::kBlockBF16, Fp8Kind::kMx}) {
      for (const auto& [n, k] : {std::pair{45u, 96u}, {17u, 77u}, {130u, 545u}, {129u, 128u}}) {
        const uint32_t columns = kind == Fp8Kind::kMx ? (k + 31) / 32 * 32 : k;
        CAPTURE(static_cast<int>(kind));
        CAPTURE(n);
        CAPTURE(columns);
        QuantSuite suite(plugin, checkpoint_of(fp8_weights(n, columns, kind), 1e-6));
        CHECK(std::string(suite.claim().contract) == "f32");
        suite.check();
      }
    }
  }

  TEST_CASE("fp8: products have the bits of float32 weights with the same numbers") {
    const QuantPlugin fp8("quant_fp8.so"), floats("quant_bf16.so");
    for (const Fp8Kind kind : {Fp8Kind::kTensor, Fp8Kind::kRow, Fp8Kind::kBlockF32, Fp8Kind::kMx}) {
      const ScaledWeights weights = fp8_weights(50, 608, kind);
      const std::vector<uint8_t> bytes = bytes_of(weights.values);
      QuantSuite packed(fp8, checkpoint_of(weights, 1e-6));
      QuantSuite plain(floats, {ATLAS_F32, "f32", 50, 608, bytes, weights.values, 1e-6});
      std::mt19937 random(6);
      std::normal_distribution<float> normal;
      std::vector<float> x(size_t{41} * 608);
      for (float& value : x) value = normal(random);
      for (const uint32_t rows : {1u, 3u, 41u}) {
        CHECK(packed.product(x, rows, {}) == plain.product(x, rows, {}));
      }
    }
  }
}

}  // namespace atlas::test
