// The resident layout: what was packed decodes to the checkpoint's floats.
#include "plugins/quant_gguf/pack.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/support/gguf_weights.h"

namespace atlas::test {

TEST_SUITE("quant_gguf") {
  TEST_CASE("pack: a packed row decodes to the floats of its blocks, in every format") {
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      CAPTURE(format.name);
      const GgufWeights weights(format, 19, 3 * format.layout.block());
      for (uint32_t i = 0; i < weights.n; ++i) {
        const std::vector<float> expected = weights.decode(i);
        const auto* group = reinterpret_cast<const uint8_t*>(weights.packed.data()) +
                            i / 16 * format.layout.group_bytes(weights.k);
        for (uint32_t b = 0; b < weights.k / 32; ++b) {
          float out[32];
          kernels::decode_packed(format.layout, group, i % 16, b, out);
          for (uint32_t e = 0; e < 32; ++e) {
            CAPTURE(i);
            CAPTURE(b);
            CAPTURE(e);
            REQUIRE(out[e] == expected[b * 32 + e]);
          }
        }
      }
    }
  }

  TEST_CASE("pack: rows past the last read as zeros, whatever the memory held before") {
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      CAPTURE(format.name);
      GgufWeights weights(format, 19, format.layout.block());
      std::fill_n(weights.packed.data(), weights.packed.size(), std::byte{0xee});
      weights.pack(1, 2);
      const auto* group = reinterpret_cast<const uint8_t*>(weights.packed.data()) +
                          format.layout.group_bytes(weights.k);
      for (uint32_t lane = 3; lane < 16; ++lane) {
        for (uint32_t b = 0; b < weights.k / 32; ++b) {
          float out[32];
          kernels::decode_packed(format.layout, group, lane, b, out);
          for (const float value : out) REQUIRE(value == 0.0f);
        }
      }
      CHECK(weights.packed.data()[0] == std::byte{0xee});  // group 0 was not asked for
    }
  }

  TEST_CASE(
      "pack: the layout costs what its checkpoint costs, and a byte a scale for Q4_K and Q5_K") {
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      CAPTURE(format.name);
      const bool byte_scales = format.layout.scales == kernels::PackedScales::kByteMin;
      CHECK(format.layout.unit_bytes() == 16 * (format.block_bytes + (byte_scales ? 4 : 0)));
    }
  }
}

}  // namespace atlas::test
