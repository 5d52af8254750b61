// WMMA of gfx1151 in its emulated form: a lane brings a whole row or column, the upper half of the
// wave the same as the lower, and gets every other row of one column.
#include <doctest/doctest.h>

#include <vector>

#include "kernels/common/device/device.h"
#include "tests/support/simt/machine.h"
#include "tests/unit/kernels/simt/matrix_suite.h"

namespace atlas::test {
namespace {

using namespace atlas::device;
using simt::Machine;

// clang-format off
ATLAS_PARAMS(WmmaParams,
  const uint32_t* a;  // [16 rows, words]
  const uint32_t* b;  // [16 columns, words]
  float* c;           // [32 lanes, 8]
  int32_t* sums;      // [32 lanes, 8]
  uint32_t kind;
  uint32_t broken;    // 1: the upper half brings zeros
);
// clang-format on

ATLAS_DEVICE_KERNEL(one_wmma, WmmaParams, 32) {
  const uint32_t lane = lane_index();
  const bool empty = params.broken != 0 && lane >= 16;
  const auto word = [&](const uint32_t* from, uint32_t words, uint32_t r) {
    return empty ? 0u : load(from + lane % 16 * words + r);
  };
  const auto kind = static_cast<simt::Matrix>(params.kind);
  if (kind == simt::Matrix::kWmmaIu8) {
    WmmaBytes a, b;
    for (uint32_t r = 0; r < 4; ++r) a.r[r] = word(params.a, 4, r), b.r[r] = word(params.b, 4, r);
    WmmaIntSums sums{};
    wmma_s8(sums, a, b);
    for (uint32_t r = 0; r < 8; ++r) store(params.sums + 8 * lane + r, sums.r[r]);
    return;
  }
  WmmaHalves a, b;
  for (uint32_t r = 0; r < 8; ++r) a.r[r] = word(params.a, 8, r), b.r[r] = word(params.b, 8, r);
  WmmaSums c{};
  if (kind == simt::Matrix::kWmmaF16) wmma_f16(c, a, b);
  if (kind == simt::Matrix::kWmmaBf16) wmma_bf16(c, a, b);
  for (uint32_t r = 0; r < 8; ++r) store(params.c + 8 * lane + r, c.r[r]);
}

template <typename Value>
void check(simt::Matrix kind, uint32_t bits, const Value& value, uint32_t keep) {
  const Matrix a = random_codes(16, 16, bits, 1, keep), b = random_codes(16, 16, bits, 2, keep);
  const uint32_t per_word = 32 / bits, words = 16 / per_word;
  const auto packed = [&](const Matrix& from) {
    std::vector<uint32_t> to(16 * words);
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t k = 0; k < 16; ++k) {
        to[row * words + k / per_word] |= from.at(row, k) << bits * (k % per_word);
      }
    }
    return to;
  };
  for (const uint32_t broken : {0u, 1u}) {
    Machine machine;
    float* c = machine.output<float>("c", 256);
    int32_t* sums = machine.output<int32_t>("sums", 256);
    const WmmaParams params{machine.input("a", packed(a)),
                            machine.input("b", packed(b)),
                            c,
                            sums,
                            static_cast<uint32_t>(kind),
                            broken};
    const simt::Report report = machine.run(ATLAS_SIMT_KERNEL(one_wmma), params, {});
    INFO(report.text());
    if (broken != 0) {
      CHECK(report.has(simt::FaultKind::kReplication));
      continue;
    }
    REQUIRE(report.ok());
    const auto floats = machine.contents(c);
    const auto ints = machine.contents(sums);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      for (uint32_t r = 0; r < 8; ++r) {
        const double exact = dot(a, 2 * r + lane / 16, b, lane % 16, value);
        if (kind == simt::Matrix::kWmmaIu8) {
          CHECK(ints[8 * lane + r] == static_cast<int32_t>(exact));
        } else {
          CHECK(floats[8 * lane + r] == static_cast<float>(exact));
        }
      }
    }
  }
}

}  // namespace

TEST_SUITE("simt") {
  TEST_CASE("device: wmma multiplies f16, and tells a half wave that is not repeated") {
    check(
        simt::Matrix::kWmmaF16, 16, [](uint32_t code) { return double{f16_value(code)}; }, 0xbfff);
  }
  TEST_CASE("device: wmma multiplies bf16, and tells a half wave that is not repeated") {
    check(
        simt::Matrix::kWmmaBf16, 16, [](uint32_t code) { return double{bf16_low(code)}; }, 0x80ff);
  }
  TEST_CASE("device: wmma multiplies signed bytes, and tells a half wave that is not repeated") {
    check(
        simt::Matrix::kWmmaIu8, 8,
        [](uint32_t code) { return static_cast<double>(static_cast<int8_t>(code)); }, 0xff);
  }
}

}  // namespace atlas::test
