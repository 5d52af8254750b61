// Plugin "bf16" on platform "cpu". Tolerance: float32 sums.
#include <doctest/doctest.h>

#include "tests/conformance/quant_suite.h"
#include "tests/support/float_weights.h"

namespace atlas::test {

TEST_SUITE("conformance/quant_bf16") {
  TEST_CASE("bf16: bfloat16, float16 and float32 claim, pack, multiply and gather at any k") {
    const QuantPlugin plugin("quant_bf16.so");
    for (const auto& [layout, dtype] :
         {std::pair{kernels::FloatLayout::kF32, AtlasDType{ATLAS_F32}},
          {kernels::FloatLayout::kF16, ATLAS_F16},
          {kernels::FloatLayout::kBF16, ATLAS_BF16}}) {
      for (const auto& [n, k] : {std::pair{45u, 96u}, {17u, 77u}, {130u, 1000u}, {1u, 1u}}) {
        CAPTURE(name_of(layout));
        CAPTURE(n);
        CAPTURE(k);
        const FloatWeights weights(layout, n, k);
        QuantSuite suite(plugin,
                         {dtype, name_of(layout), n, k, weights.bytes, weights.values, 1e-6});
        CHECK(std::string(suite.claim().contract) == "f32");
        suite.check();
      }
    }
  }
}

}  // namespace atlas::test
