// mma.sync in its emulated form against products of plain matrices: operands are laid into lanes by
// the documented layout written out here once more, from lane = 4 g + t.
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <vector>

#include "kernels/common/device/device.h"
#include "tests/support/simt/machine.h"
#include "tests/unit/kernels/simt/matrix_suite.h"

namespace atlas::test {
namespace {

using namespace atlas::device;
using simt::Machine;

// clang-format off
ATLAS_PARAMS(MatrixParams,
  const uint32_t* a;       // [32 lanes, 4]
  const uint32_t* b;       // [32 lanes, 2]
  const uint32_t* scales;  // [32 lanes, 2]
  float* c;                // [32 lanes, 4]
  int32_t* sums;           // [32 lanes, 4]
  uint32_t kind;
  uint32_t reserved;
);
// clang-format on

ATLAS_DEVICE_KERNEL(one_mma, MatrixParams, 32) {
  const uint32_t lane = lane_index();
  MmaA a;
  MmaB b;
  for (uint32_t r = 0; r < 4; ++r) a.r[r] = load(params.a + 4 * lane + r);
  for (uint32_t r = 0; r < 2; ++r) b.r[r] = load(params.b + 2 * lane + r);
  const auto kind = static_cast<simt::Matrix>(params.kind);
  if (kind == simt::Matrix::kMmaS8) {
    MmaIntSums sums;
    for (uint32_t r = 0; r < 4; ++r) sums.r[r] = load(params.sums + 4 * lane + r);
    mma_s8(sums, a, b);
    for (uint32_t r = 0; r < 4; ++r) store(params.sums + 4 * lane + r, sums.r[r]);
    return;
  }
  MmaSums c;
  for (uint32_t r = 0; r < 4; ++r) c.r[r] = load(params.c + 4 * lane + r);
  if (kind == simt::Matrix::kMmaF16) mma_f16(c, a, b);
  if (kind == simt::Matrix::kMmaBf16) mma_bf16(c, a, b);
  if (kind == simt::Matrix::kMmaE4m3) mma_e4m3(c, a, b);
  if (kind == simt::Matrix::kMmaNvfp4) {
    mma_nvfp4(c, a, b, load(params.scales + 2 * lane), load(params.scales + 2 * lane + 1));
  }
  for (uint32_t r = 0; r < 4; ++r) store(params.c + 4 * lane + r, c.r[r]);
}

using Value = std::function<double(uint32_t)>;

/// Runs one instruction over A [16, k], B [8, k] (its columns as rows) and C = 1; compares all
/// cells.
void check(simt::Matrix kind, uint32_t bits, const Value& value, uint32_t keep = ~0u) {
  const uint32_t per_word = 32 / bits, depth = 8 * per_word;
  const Matrix a = random_codes(16, depth, bits, 1, keep),
               b = random_codes(8, depth, bits, 2, keep);
  // ue4m3 bytes of each row of A and each column of B, one for 16 elements.
  const Matrix scale_a = random_codes(16, 4, 6, 3), scale_b = random_codes(8, 4, 6, 4);
  const bool scaled = kind == simt::Matrix::kMmaNvfp4;
  std::vector<uint32_t> a_words(128), b_words(64), scales(64, 0x77777777u);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t e = 0; e < per_word; ++e) {
      const uint32_t k = per_word * t + e;
      a_words[4 * lane + 0] |= a.at(g, k) << bits * e;
      a_words[4 * lane + 1] |= a.at(g + 8, k) << bits * e;
      a_words[4 * lane + 2] |= a.at(g, k + depth / 2) << bits * e;
      a_words[4 * lane + 3] |= a.at(g + 8, k + depth / 2) << bits * e;
      b_words[2 * lane + 0] |= b.at(g, k) << bits * e;
      b_words[2 * lane + 1] |= b.at(g, k + depth / 2) << bits * e;
    }
    if (t < 2) scales[2 * lane] = 0;
    if (t == 0) scales[2 * lane + 1] = 0;
    for (uint32_t j = 0; j < 4; ++j) {
      if (t < 2) scales[2 * lane] |= scale_a.at(g + 8 * t, j) << 8 * j;
      if (t == 0) scales[2 * lane + 1] |= scale_b.at(g, j) << 8 * j;
    }
  }
  Machine machine;
  float* c = machine.in_out("c", std::vector<float>(128, 1.0f));
  int32_t* sums = machine.in_out("sums", std::vector<int32_t>(128, 1));
  const MatrixParams params{machine.input("a", a_words),
                            machine.input("b", b_words),
                            machine.input("scales", scales),
                            c,
                            sums,
                            static_cast<uint32_t>(kind),
                            0};
  const simt::Report report = machine.run(ATLAS_SIMT_KERNEL(one_mma), params, {});
  INFO(report.text());
  REQUIRE(report.ok());
  CHECK(report.matrix_count(kind) == 1);
  const auto floats = machine.contents(c);
  const auto ints = machine.contents(sums);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t r = 0; r < 4; ++r) {
      const uint32_t row = lane / 4 + (r < 2 ? 0 : 8), column = 2 * (lane % 4) + r % 2;
      double exact = 1;
      for (uint32_t k = 0; k < depth; ++k) {
        double product = value(a.at(row, k)) * value(b.at(column, k));
        if (scaled)
          product *=
              double{e4m3_value(scale_a.at(row, k / 16))} * e4m3_value(scale_b.at(column, k / 16));
        exact += product;
      }
      if (kind == simt::Matrix::kMmaS8) {
        CHECK(ints[4 * lane + r] == static_cast<int32_t>(exact));
      } else {
        CHECK(floats[4 * lane + r] == static_cast<float>(exact));
      }
    }
  }
}

}  // namespace

TEST_SUITE("simt") {
  TEST_CASE("device: every element of a fragment stands in one place") {
    for (const uint32_t per_word : {2u, 4u, 8u}) {
      std::set<std::pair<uint32_t, uint32_t>> a, b, cells;
      for (uint32_t lane = 0; lane < 32; ++lane) {
        for (uint32_t e = 0; e < per_word; ++e) {
          for (uint32_t r = 0; r < 4; ++r) {
            const Element at = mma_a_element(lane, r, e, per_word);
            a.emplace(at.row, at.k);
          }
          for (uint32_t r = 0; r < 2; ++r) {
            const Element at = mma_b_element(lane, r, e, per_word);
            b.emplace(at.row, at.k);
          }
        }
        for (uint32_t r = 0; r < 4; ++r)
          cells.emplace(mma_cell(lane, r).row, mma_cell(lane, r).column);
      }
      CHECK(a.size() == 16 * 8 * per_word);
      CHECK(b.size() == 8 * 8 * per_word);
      CHECK(cells.size() == 128);
      CHECK(a.rbegin()->second == 8 * per_word - 1);
    }
  }

  TEST_CASE("device: mma multiplies f16") {
    // Magnitudes below 2: exponents up to 15.
    check(
        simt::Matrix::kMmaF16, 16, [](uint32_t code) { return f16_value(code); }, 0xbfff);
  }
  TEST_CASE("device: mma multiplies bf16") {
    // Exponents around 1 only, so that float64 holds the exact sum.
    check(
        simt::Matrix::kMmaBf16, 16,
        [](uint32_t code) { return code == 0 ? 0.0 : bf16_low(code & 0x80ff); }, 0x80ff);
  }
  TEST_CASE("device: mma multiplies signed bytes") {
    check(simt::Matrix::kMmaS8, 8, [](uint32_t code) { return static_cast<int8_t>(code); });
  }
  TEST_CASE("device: mma multiplies e4m3") {
    check(
        simt::Matrix::kMmaE4m3, 8, [](uint32_t code) { return e4m3_value(code); }, 0xbf);
  }
  TEST_CASE("device: block-scaled mma multiplies e2m1 by its ue4m3 scales") {
    check(simt::Matrix::kMmaNvfp4, 4, [](uint32_t code) { return e2m1_value(code); });
  }
}

}  // namespace atlas::test
