// Plugin "gguf" on platform "cpu". Tolerance of block formats: activations have 16 bits a block.
#include <doctest/doctest.h>

#include "tests/conformance/quant_suite.h"
#include "tests/support/float_weights.h"
#include "tests/support/gguf_weights.h"

namespace atlas::test {

TEST_SUITE("conformance/quant_gguf") {
  TEST_CASE("gguf: every block format claims, packs, multiplies and gathers") {
    const QuantPlugin plugin("quant_gguf.so");
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      for (const auto& [n, blocks] : {std::pair{45u, 3u}, {130u, 6u}}) {
        CAPTURE(format.name);
        CAPTURE(n);
        const GgufWeights weights(format, n, blocks * format.layout.block());
        Checkpoint checkpoint{format.dtype, format.name, n, weights.k, weights.blocks, {}, 1e-4};
        for (uint32_t i = 0; i < n; ++i) {
          const std::vector<float> row = weights.decode(i);
          checkpoint.values.insert(checkpoint.values.end(), row.begin(), row.end());
        }
        QuantSuite suite(plugin, checkpoint);
        CHECK(std::string(suite.claim().contract) == "i16b32");
        suite.check();
      }
    }
  }

  TEST_CASE("gguf: the floats of a GGUF file are computed as floats") {
    const QuantPlugin plugin("quant_gguf.so");
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

}  // namespace atlas::test
