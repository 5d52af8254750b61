// Plugins "gguf" and "gguf_f32" on platform "cpu". Tolerance of "gguf" on block formats:
// activations have 16 bits a block; elsewhere: float32 sums.
#include <doctest/doctest.h>

#include "tests/conformance/quant_suite.h"
#include "tests/support/float_weights.h"
#include "tests/support/gguf_weights.h"

namespace atlas::test {

namespace {

Checkpoint checkpoint_of(const GgufWeights& weights, double tolerance) {
  Checkpoint checkpoint{weights.format.dtype,
                        weights.format.name,
                        weights.n,
                        weights.k,
                        weights.blocks,
                        {},
                        tolerance};
  for (uint32_t i = 0; i < weights.n; ++i) {
    const std::vector<float> row = weights.decode(i);
    checkpoint.values.insert(checkpoint.values.end(), row.begin(), row.end());
  }
  return checkpoint;
}

void check_blocks(const QuantPlugin& plugin, const std::string& contract, double tolerance) {
  for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
    for (const auto& [n, blocks] : {std::pair{45u, 3u}, {130u, 6u}}) {
      CAPTURE(format.name);
      CAPTURE(n);
      const GgufWeights weights(format, n, blocks * format.layout.block());
      QuantSuite suite(plugin, checkpoint_of(weights, tolerance));
      CHECK(suite.claim().contract == contract);
      suite.check();
    }
  }
}

}  // namespace

TEST_SUITE("conformance/quant_gguf") {
  TEST_CASE("gguf: every block format claims, packs, multiplies and gathers") {
    const QuantPlugin plugin("quant_gguf.so");
    check_blocks(plugin, "i16b32", 1e-4);
  }

  TEST_CASE("gguf_f32: every block format claims, packs, multiplies and gathers") {
    const QuantPlugin plugin("quant_gguf_f32.so");
    check_blocks(plugin, "f32", 1e-6);
  }

  TEST_CASE("gguf, gguf_f32: the floats of a GGUF file are computed as floats") {
    for (const char* file : {"quant_gguf.so", "quant_gguf_f32.so"}) {
      CAPTURE(file);
      const QuantPlugin plugin(file);
      for (const auto& [layout, dtype] :
           {std::pair{kernels::FloatLayout::kF32, AtlasDType{ATLAS_F32}},
            {kernels::FloatLayout::kF16, ATLAS_F16},
            {kernels::FloatLayout::kBF16, ATLAS_BF16}}) {
        CAPTURE(name_of(layout));
        const FloatWeights weights(layout, 45, 96);
        QuantSuite suite(plugin,
                         {dtype, name_of(layout), 45, 96, weights.bytes, weights.values, 1e-6});
        CHECK(std::string(suite.claim().contract) == "f32");
        suite.check();
      }
    }
  }

  TEST_CASE("gguf, gguf_f32: their packed weights are the same, and their layouts say so") {
    const QuantPlugin one("quant_gguf.so");
    const QuantPlugin other("quant_gguf_f32.so");
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      const GgufWeights weights(format, 20, format.layout.block());
      const Checkpoint checkpoint = checkpoint_of(weights, 1.0);
      CHECK(std::string(QuantSuite(one, checkpoint).claim().layout) ==
            QuantSuite(other, checkpoint).claim().layout);
    }
  }
}

}  // namespace atlas::test
