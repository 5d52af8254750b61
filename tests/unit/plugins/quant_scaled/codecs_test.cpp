// The small float formats, every code of them, against their definitions and against tables that
// the packages ml_dtypes and numpy wrote (tests/golden/small_floats).
#include "kernels/common/codecs.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include "kernels/common/fp8.h"
#include "kernels/common/nvfp4.h"
#include "tests/support/scaled_weights.h"

namespace atlas::test {
namespace {

/// Same number and sign; NaN is like NaN.
bool same(float found, double expected) {
  if (std::isnan(expected)) return std::isnan(found);
  return double{found} == expected && std::signbit(found) == std::signbit(expected);
}

std::vector<float> golden_table() {
  std::ifstream file(ATLAS_SOURCE_DIR "/tests/golden/small_floats/tables.bin", std::ios::binary);
  std::vector<float> values(16 + 256 + 256);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(float)));
  REQUIRE(file.good());
  return values;
}

}  // namespace

TEST_SUITE("quant_scaled") {
  TEST_CASE("codecs: all 16 codes of e2m1, all 256 of e4m3 and of ue8m0") {
    const std::vector<float> golden = golden_table();
    for (uint32_t code = 0; code < 16; ++code) {
      CAPTURE(code);
      const float value = kernels::e2m1_to_f32(static_cast<uint8_t>(code));
      CHECK(same(value, number_e2m1(static_cast<uint8_t>(code))));
      CHECK(same(value, golden[code]));
      CHECK(2 * value == kernels::kNvfp4Twice[code]);
    }
    for (uint32_t code = 0; code < 256; ++code) {
      CAPTURE(code);
      const auto byte = static_cast<uint8_t>(code);
      CHECK(same(kernels::e4m3_to_f32(byte), number_e4m3(byte)));
      CHECK(same(kernels::e4m3_to_f32(byte), golden[16 + code]));
      CHECK(same(kernels::ue8m0_to_f32(byte), number_ue8m0(byte)));
      CHECK(same(kernels::ue8m0_to_f32(byte), golden[272 + code]));
    }
  }

  TEST_CASE("codecs: the kernels' short cuts give every finite code its number") {
    for (uint32_t code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;
      const auto byte = static_cast<uint8_t>(code);
      CAPTURE(code);
      const uint32_t bits = (code & 0x80) << 24 | (code & 0x7f) << 20;
      CHECK(same(std::bit_cast<float>(bits) * kernels::kFp8HeadFactor, number_e4m3(byte)));
    }
    for (uint32_t code = 0; code <= kernels::kMxLargestScale; ++code) {
      CAPTURE(code);
      CHECK(std::bit_cast<float>((code + 120) << 23) ==
            std::ldexp(number_ue8m0(static_cast<uint8_t>(code)), 120));
    }
  }

  TEST_CASE("codecs: the worked example of NVFP4 unpacks to its codes") {
    // Weights 0.11 -0.42 0.03 0.9 -1.25 0.66 0.31 -0.05 0.2 0.75 -0.8 0.5 -0.15 0.02 1 -0.6 of a
    // matrix whose largest is 2: scale 288 and matrix scale 2 / 2688.
    const uint8_t bytes[8] = {0xc1, 0x60, 0x5f, 0x03, 0x62, 0x4e, 0x09, 0xd6};
    const int codes[16] = {1, 12, 0, 6, 15, 5, 3, 0, 2, 6, 14, 4, 9, 0, 6, 13};
    const uint8_t scale = 0x79;
    const uint8_t* rows[kernels::kRowGroup] = {bytes};
    const uint8_t* scales[kernels::kRowGroup] = {&scale};
    std::vector<uint8_t> group(kernels::nvfp4_group_bytes(16), 0xc3);
    kernels::pack_nvfp4(rows, scales, 2.0f / 2688.0f, 16, group.data());
    for (uint32_t i = 0; i < 16; ++i) {
      CAPTURE(i);
      const double exact = number_e2m1(static_cast<uint8_t>(codes[i])) * 288 * (2.0f / 2688.0f);
      CHECK(kernels::decode_nvfp4(group.data(), 0, i) == static_cast<float>(exact));
      CHECK(kernels::decode_nvfp4(group.data(), 5, i) == 0.0f);
    }
  }
}

}  // namespace atlas::test
