// Plugin "exl3" on platform "cpu": decoding against the vectors and the slow reference, exact;
// products and rows against float64; the same bits for all row counts, experts and instruction
// sets.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/exl3.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/exl3_module.h"
#include "tests/support/exl3_reference.h"
#include "tests/support/quant_plugin.h"

namespace atlas::test {
namespace {

/// A packed module and the plugin's records over it.
class Exl3Suite {
 public:
  Exl3Suite(const QuantPlugin& plugin, const SlowMatrix& matrix)
      : Exl3Suite(plugin, matrix, matrix.n, matrix.k) {}
  /// The model's matrix is [n, k], `matrix` has that padded.
  Exl3Suite(const QuantPlugin& plugin, const SlowMatrix& matrix, uint32_t n, uint32_t k)
      : plugin_(plugin), n_(n), k_(k), module_(matrix) {
    AtlasError error{sizeof(AtlasError), {}};
    AtlasWeightQuery query = module_.query();
    query.n = n;
    query.k = k;
    claim_.struct_size = sizeof(claim_);
    const AtlasCode code = plugin_.api.claim(&query, &claim_, &error);
    REQUIRE_MESSAGE(code == ATLAS_OK, error.message);
    REQUIRE(claim_.claimed == 1);
    REQUIRE(claim_.n == n_);
    REQUIRE(claim_.k == k_);
    REQUIRE(claim_.row_group == 128);
    const uint64_t groups = matrix.n / 128;
    packed_ = std::make_unique<Aligned>(claim_.head_bytes + groups * claim_.group_bytes);
    std::fill_n(packed_->data(), packed_->size(), std::byte{0xc3});
    // Backwards and one group at a time, and in one piece: the parts must not matter.
    for (uint64_t g = groups; g-- > 0;) {
      const uint64_t at = g == 0 ? 0 : claim_.head_bytes + g * claim_.group_bytes;
      REQUIRE(plugin_.api.pack(&query, &claim_, g, g + 1, packed_->data() + at, &error) ==
              ATLAS_OK);
    }
    Aligned whole(packed_->size());
    REQUIRE(plugin_.api.pack(&query, &claim_, 0, groups, whole.data(), &error) == ATLAS_OK);
    REQUIRE(std::memcmp(whole.data(), packed_->data(), whole.size()) == 0);
  }

  const AtlasWeightClaim& claim() const { return claim_; }
  const std::byte* packed() const { return packed_->data(); }
  uint64_t bytes() const { return packed_->size(); }

  std::vector<float> product(const std::vector<float>& x, uint32_t rows, Split split = {},
                             uint32_t epilogue = ATLAS_EPILOGUE_NONE, float start = 0) {
    RecordRunner runner;
    std::vector<float> y(size_t{rows} * n_, start);
    AtlasLinearProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows + 2;
    problem.platform = "cpu";
    problem.format = claim_.format;
    problem.n = n_;
    problem.k = k_;
    problem.x_stride = k_;
    problem.y_stride = n_;
    problem.epilogue = epilogue;
    problem.x = runner.buffer(x.data());
    problem.y = runner.buffer(y.data());
    problem.weight = runner.buffer(packed_->data());
    problem.row_count = runner.buffer(&rows);
    AtlasError error{sizeof(AtlasError), {}};
    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    REQUIRE(plugin_.api.linear_needs(&problem, &needs, &error) == ATLAS_OK);
    REQUIRE((needs.fused_epilogues & 1u << epilogue) != 0);
    REQUIRE(needs.input_encoding[0] == '\0');
    Aligned workspace(needs.workspace_bytes);
    std::fill_n(workspace.data(), workspace.size(), std::byte{0xff});
    problem.workspace = runner.buffer(workspace.data());
    REQUIRE(plugin_.api.plan_linear(&problem, &runner.sink, &error) == ATLAS_OK);
    uint64_t read = 0;
    for (const Emitted& record : runner.emitted) read += record.bytes_read;
    CHECK(read <= bytes());
    CHECK(read + 64 > bytes());
    runner.run(pack_, split);
    return y;
  }

  std::vector<float> gather(const std::vector<uint32_t>& ids) {
    RecordRunner runner;
    const auto rows = static_cast<uint32_t>(ids.size());
    std::vector<float> y(ids.size() * k_);
    AtlasGatherProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows + 2;
    problem.platform = "cpu";
    problem.format = claim_.format;
    problem.n = n_;
    problem.k = k_;
    problem.id_stride = 4;
    problem.ids = runner.buffer(ids.data());
    problem.y = runner.buffer(y.data());
    problem.weight = runner.buffer(packed_->data());
    problem.row_count = runner.buffer(&rows);
    problem.y_stride = k_;
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.plan_gather(&problem, &runner.sink, &error) == ATLAS_OK);
    runner.run(pack_, Split{2, 1});
    return y;
  }

  /// What[k][n] as the pack's product decodes it: sums of rows that are one 1 and zeros.
  std::vector<float> inner(uint32_t rows_at_once) {
    // [block][row][128], as the product takes and gives them.
    std::vector<float> x(size_t{k_} * k_), sums(size_t{k_} * n_), values(size_t{k_} * n_);
    for (uint32_t i = 0; i < k_; ++i) x[size_t{i / 128 * 128} * k_ + i * 128 + i % 128] = 1;
    const std::string format = claim_.format;
    const std::string name = "exl3_product_" + format.substr(format.rfind('_') + 1);
    for (uint32_t first = 0; first < k_; first += rows_at_once) {
      const uint32_t rows = std::min(rows_at_once, k_ - first);
      kernels::Exl3ProductParams params{};
      params.x = x.data() + size_t{first} * 128;
      params.strips = packed_->data() + claim_.head_bytes;
      params.sums = sums.data() + size_t{first} * 128;
      params.row_count = &rows;
      params.n = n_;
      params.k = k_;
      params.units = static_cast<uint32_t>(claim_.group_bytes / 8 / k_);
      params.tasks = n_ / 32;
      params.rows = k_;
      pack_.run(name, params, params.tasks, Split{2, 1});
    }
    for (uint32_t i = 0; i < k_; ++i) {
      for (uint32_t j = 0; j < n_; ++j) {
        values[size_t{i} * n_ + j / 128 * 128 + kernels::exl3_output(j % 128)] =
            sums[size_t{j / 128 * 128} * k_ + i * 128 + j % 128];
      }
    }
    return values;
  }

 private:
  const QuantPlugin& plugin_;
  const uint32_t n_, k_;
  Exl3Module module_;
  AtlasWeightClaim claim_{};
  std::unique_ptr<Aligned> packed_;
  CpuPack pack_;
};

std::vector<float> random_rows(uint32_t rows, uint32_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{rows} * k);
  for (float& value : x) value = normal(random);
  return x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The product of experts has the bits of plain products, rows in any place. `cut`: so much of the
/// sizes is padding.
void check_experts(const QuantPlugin& plugin, const std::string& codebook, double bits,
                   uint32_t count, uint32_t cut = 0) {
  constexpr uint32_t kMostRows = 150;
  const uint32_t kN = 384 - cut, kK = 256 - cut;
  std::vector<std::unique_ptr<Exl3Suite>> suites;
  for (uint32_t e = 0; e < count; ++e) {
    suites.push_back(
        std::make_unique<Exl3Suite>(plugin, SlowMatrix(codebook, bits, 384, 256, 100 + e), kN, kK));
  }
  const uint64_t expert_bytes = suites.front()->bytes() + 128;
  Aligned weights(expert_bytes * count);
  for (uint32_t e = 0; e < count; ++e) {
    std::copy_n(suites[e]->packed(), suites[e]->bytes(), weights.data() + e * expert_bytes);
  }
  const std::vector<float> x = random_rows(kMostRows, kK, 9);
  std::mt19937 random(count);
  for (const uint32_t rows : {0u, 1u, 7u, kMostRows}) {
    for (const bool with_source : {true, false}) {
      std::vector<uint32_t> rows_of(count), offsets(1), source;
      for (uint32_t i = 0; i < rows; ++i) ++rows_of[i < 130 ? count / 2 : random() % count];
      for (const uint32_t each : rows_of) offsets.push_back(offsets.back() + each);
      for (uint32_t i = 0; with_source && i <= rows; ++i) source.push_back(random() % kMostRows);
      RecordRunner runner;
      std::vector<float> y(size_t{rows + 1} * kN, -7.25f);
      AtlasGroupedProblem problem{};
      problem.struct_size = sizeof(problem);
      problem.max_rows = rows + 1;
      problem.platform = "cpu";
      problem.format = suites.front()->claim().format;
      problem.n = kN;
      problem.k = kK;
      problem.experts = count;
      problem.expert_bytes = expert_bytes;
      problem.x_stride = kK;
      problem.y_stride = kN;
      problem.x = runner.buffer(x.data());
      problem.y = runner.buffer(y.data());
      problem.weight = runner.buffer(weights.data());
      problem.offsets = runner.buffer(offsets.data());
      problem.source = {ATLAS_NO_BUFFER, 0, 0};
      if (with_source) problem.source = runner.buffer(source.data());
      AtlasError error{sizeof(AtlasError), {}};
      AtlasLinearNeeds needs{};
      needs.struct_size = sizeof(needs);
      REQUIRE(plugin.api.grouped_needs(&problem, &needs, &error) == ATLAS_OK);
      Aligned workspace(needs.workspace_bytes);
      problem.workspace = runner.buffer(workspace.data());
      REQUIRE(plugin.api.plan_grouped(&problem, &runner.sink, &error) == ATLAS_OK);
      runner.run(CpuPack(), with_source ? Split{2, 3} : Split{});
      for (uint32_t e = 0; e < count; ++e) {
        std::vector<float> inputs;
        for (uint32_t i = offsets[e]; i < offsets[e + 1]; ++i) {
          const auto from = x.begin() + ptrdiff_t{kK} * (with_source ? source[i] : i);
          inputs.insert(inputs.end(), from, from + kK);
        }
        const std::vector<float> expected = suites[e]->product(inputs, rows_of[e]);
        REQUIRE(std::memcmp(y.data() + size_t{offsets[e]} * kN, expected.data(),
                            expected.size() * sizeof(float)) == 0);
      }
      REQUIRE(std::count(y.end() - kN, y.end(), -7.25f) == kN);
    }
  }
}

}  // namespace

TEST_SUITE("conformance/quant_exl3") {
  TEST_CASE(
      "exl3: every format decodes to the reference's very numbers, for one row and for many") {
    const QuantPlugin plugin("quant_exl3.so");
    for (const auto& [codebook, bits] : all_exl3_formats()) {
      CAPTURE(codebook);
      CAPTURE(bits);
      const SlowMatrix matrix(codebook, bits, 128, 256, static_cast<uint32_t>(16 * bits));
      const std::vector<double> expected = matrix.inner();
      Exl3Suite suite(plugin, matrix);
      CHECK(std::string(suite.claim().contract) == "exl3_f32");
      CHECK(suite.claim().bits_per_weight == doctest::Approx(bits + 16.0 / 128 + 16.0 / 256));
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        for (const uint32_t rows : {1u, 256u}) {
          const std::vector<float> found = suite.inner(rows);
          REQUIRE(std::equal(found.begin(), found.end(), expected.begin()));
        }
      }
    }
  }

  TEST_CASE("exl3: all 65536 states decode on every instruction set") {
    const QuantPlugin plugin("quant_exl3.so");
    for (const char* codebook : {"3inst", "mcg", "mul1"}) {
      const SlowMatrix matrix = matrix_of_all_states(codebook);
      const std::vector<double> expected = matrix.inner();
      Exl3Suite suite(plugin, matrix);
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        const std::vector<float> found = suite.inner(256);
        REQUIRE(std::equal(found.begin(), found.end(), expected.begin()));
      }
    }
  }

  TEST_CASE("exl3: products and rows are those of float64, with the same bits for all row counts") {
    const QuantPlugin plugin("quant_exl3.so");
    for (const auto& [codebook, bits] : all_exl3_formats()) {
      const bool large = bits == 3 || bits == 2.5;
      const SlowMatrix matrix(codebook, bits, large ? 640 : 256, large ? 384 : 128, 5);
      CAPTURE(codebook);
      CAPTURE(bits);
      Exl3Suite suite(plugin, matrix);
      constexpr uint32_t kRows = 139;
      const std::vector<float> x = random_rows(kRows, matrix.k, 3);
      const std::vector<float> y = suite.product(x, kRows);
      CHECK(largest_share(matrix, x, y, matrix.n, matrix.k) <= 1e-6);
      for (const uint32_t rows : {1u, 2u, 3u, 9u, 15u, 128u}) {
        const std::vector<float> some = suite.product(x, rows, Split{2, 3});
        REQUIRE(same_bits(some, {y.begin(), y.begin() + rows * ptrdiff_t{matrix.n}}));
      }
      const std::vector<float> added = suite.product(x, 21, {}, ATLAS_EPILOGUE_ADD, 2.5f);
      for (size_t i = 0; i < added.size(); ++i) REQUIRE(added[i] == 2.5f + y[i]);

      const std::vector<uint32_t> ids = {matrix.n - 1, 0, matrix.n / 2 + 17, 0, matrix.n};
      const std::vector<float> rows = suite.gather(ids);
      const std::vector<double> w = matrix.outer();
      for (size_t i = 0; i < rows.size(); ++i) {
        const uint32_t id = ids[i / matrix.k];
        if (id == matrix.n) {
          REQUIRE(std::isnan(rows[i]));
        } else {
          REQUIRE(std::fabs(rows[i] - w[size_t{id} * matrix.k + i % matrix.k]) < 3e-6);
        }
      }
    }
  }

  TEST_CASE("exl3: instruction sets agree to the bit") {
    const QuantPlugin plugin("quant_exl3.so");
    for (const auto& [codebook, bits] :
         {std::pair{"3inst", 4.0}, {"mcg", 5.0}, {"mul1", 3.0}, {"mul1", 1.5}}) {
      const SlowMatrix matrix(codebook, bits, 384, 256, 8);
      Exl3Suite suite(plugin, matrix);
      const std::vector<float> x = random_rows(13, matrix.k, 4);
      const std::vector<float> y = suite.product(x, 13), row = suite.gather({200});
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        CHECK(same_bits(suite.product(x, 13), y));
        CHECK(same_bits(suite.gather({200}), row));
        CHECK(same_bits(suite.product(x, 1), {y.begin(), y.begin() + matrix.n}));
      }
    }
  }

  TEST_CASE("exl3: rows of experts have the bits of plain products") {
    const QuantPlugin plugin("quant_exl3.so");
    check_experts(plugin, "mul1", 3, 1);
    check_experts(plugin, "mul1", 2.5, 5);
    check_experts(plugin, "mcg", 4, 7);
    check_experts(plugin, "3inst", 2, 7);
    check_experts(plugin, "mul1", 1, 200);
    check_experts(plugin, "mul1", 4, 7, 57);
  }

  TEST_CASE("exl3: sizes that are no multiples of 128 are those of a padded trellis") {
    const QuantPlugin plugin("quant_exl3.so");
    struct Size {
      uint32_t n, k;
    };
    // An indexer's 320 outputs, SmolLM2's 576 and 192, one of each beyond a block and before its
    // end, and a single number.
    for (const Size size : {Size{320, 256}, {576, 192}, {129, 127}, {255, 257}, {1, 1}}) {
      CAPTURE(size.n);
      CAPTURE(size.k);
      // Older converters leave noise in the padding: its scales are no zeros here.
      const SlowMatrix matrix("mul1", 3, (size.n + 127) / 128 * 128, (size.k + 127) / 128 * 128, 7);
      Exl3Suite suite(plugin, matrix, size.n, size.k);
      CHECK(suite.claim().bits_per_weight ==
            doctest::Approx(8.0 * static_cast<double>(suite.bytes()) / size.n / size.k));
      constexpr uint32_t kRows = 21;
      const std::vector<float> x = random_rows(kRows, size.k, 3);
      const std::vector<float> y = suite.product(x, kRows);
      CHECK(largest_share(matrix, x, y, size.n, size.k) <= 1e-6);
      CHECK(same_bits(suite.product(x, 1, Split{2, 3}), {y.begin(), y.begin() + size.n}));
      const std::vector<float> added = suite.product(x, kRows, {}, ATLAS_EPILOGUE_ADD, 2.5f);
      for (size_t i = 0; i < added.size(); ++i) REQUIRE(added[i] == 2.5f + y[i]);
      const std::vector<float> rows = suite.gather({size.n - 1, 0, size.n});
      const std::vector<double> w = matrix.outer();
      for (uint32_t i = 0; i < size.k; ++i) {
        REQUIRE(std::fabs(rows[i] - w[size_t{size.n - 1} * matrix.k + i]) < 3e-6);
        REQUIRE(std::fabs(rows[size.k + i] - w[i]) < 3e-6);
        REQUIRE(std::isnan(rows[2 * size.k + i]));
      }
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        CHECK(same_bits(suite.product(x, kRows), y));
      }
    }
  }

  TEST_CASE("exl3: scales as sign bits, the old form, are the same as scales of 1 and -1") {
    const QuantPlugin plugin("quant_exl3.so");
    SlowMatrix matrix("3inst", 4, 256, 128, 6);
    std::vector<uint16_t> su(matrix.k / 16), sv(matrix.n / 16);
    for (uint32_t i = 0; i < matrix.k; ++i) {
      su[i / 16] = static_cast<uint16_t>(su[i / 16] | (matrix.suh[i] >> 15) << i % 16);
      matrix.suh[i] = static_cast<uint16_t>((matrix.suh[i] & 0x8000) | 0x3c00);
    }
    for (uint32_t i = 0; i < matrix.n; ++i) {
      sv[i / 16] = static_cast<uint16_t>(sv[i / 16] | (matrix.svh[i] >> 15) << i % 16);
      matrix.svh[i] = static_cast<uint16_t>((matrix.svh[i] & 0x8000) | 0x3c00);
    }
    Exl3Module old(matrix);
    old.remove("suh");
    old.remove("svh");
    old.add("su", ATLAS_I16, {su.size()}, su.data());
    old.add("sv", ATLAS_I16, {sv.size()}, sv.data());
    const AtlasWeightQuery query = old.query();
    AtlasWeightClaim claim{};
    claim.struct_size = sizeof(claim);
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin.api.claim(&query, &claim, &error) == ATLAS_OK);
    Exl3Suite suite(plugin, matrix);
    Aligned packed(suite.bytes());
    REQUIRE(plugin.api.pack(&query, &claim, 0, 2, packed.data(), &error) == ATLAS_OK);
    CHECK(std::memcmp(packed.data(), suite.packed(), suite.bytes()) == 0);
  }
}

}  // namespace atlas::test
