// The scalar decoders against what the reference package decodes (tests/golden/gguf).
#include "kernels/common/codecs.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/gguf_weights.h"

namespace atlas::test {
namespace {

struct Golden {
  std::string name;
  uint32_t block_bytes, elements, blocks;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

std::vector<Golden> read_golden() {
  std::ifstream file(ATLAS_SOURCE_DIR "/tests/golden/gguf/blocks.bin", std::ios::binary);
  std::vector<Golden> all;
  char name[8];
  while (file.read(name, sizeof(name))) {
    Golden golden;
    golden.name = std::string(name, strnlen(name, sizeof(name)));
    uint32_t sizes[3];
    file.read(reinterpret_cast<char*>(sizes), sizeof(sizes));
    golden.block_bytes = sizes[0];
    golden.elements = sizes[1];
    golden.blocks = sizes[2];
    golden.bytes.resize(size_t{sizes[0]} * sizes[2]);
    golden.values.resize(size_t{sizes[1]} * sizes[2]);
    file.read(reinterpret_cast<char*>(golden.bytes.data()), golden.bytes.size());
    file.read(reinterpret_cast<char*>(golden.values.data()), golden.values.size() * 4);
    all.push_back(std::move(golden));
  }
  return all;
}

}  // namespace

TEST_SUITE("quant_gguf") {
  TEST_CASE("codecs: every block type decodes to the reference's floats, bit for bit") {
    const std::vector<Golden> all = read_golden();
    REQUIRE(all.size() == quant_gguf::kBlockFormats.size());
    for (const Golden& golden : all) {
      CAPTURE(golden.name);
      const quant_gguf::BlockFormat& format = block_format(golden.name);
      REQUIRE(format.block_bytes == golden.block_bytes);
      REQUIRE(format.layout.block() == golden.elements);
      std::vector<float> out(golden.elements);
      for (uint32_t b = 0; b < golden.blocks; ++b) {
        format.decode(golden.bytes.data() + size_t{b} * golden.block_bytes, out.data());
        for (uint32_t e = 0; e < golden.elements; ++e) {
          const float expected = golden.values[size_t{b} * golden.elements + e];
          CAPTURE(e);
          REQUIRE(out[e] == expected);
        }
      }
    }
  }

  TEST_CASE("codecs: all 65,536 halves convert as the formula of IEEE 754 says") {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const int exponent = static_cast<int>(bits >> 10 & 31);
      const int mantissa = static_cast<int>(bits & 1023);
      const float value = kernels::f16_to_f32(static_cast<uint16_t>(bits));
      const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                              : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                               : std::ldexp(1024.0f + mantissa, exponent - 25);
      CAPTURE(bits);
      REQUIRE(std::signbit(value) == (bits >= 0x8000));
      if (std::isnan(magnitude)) {
        REQUIRE(std::isnan(value));
      } else {
        REQUIRE(std::fabs(value) == magnitude);
      }
    }
  }

  TEST_CASE("codecs: bf16 is the upper half of a float32") {
    CHECK(kernels::bf16_to_f32(0x3f80) == 1.0f);
    CHECK(kernels::bf16_to_f32(0xc049) == -3.140625f);
    CHECK(std::isinf(kernels::bf16_to_f32(0xff80)));
  }
}

}  // namespace atlas::test
