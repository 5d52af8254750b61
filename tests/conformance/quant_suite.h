// What every quantization plugin must do for every format, driven as the daemon drives it: claim,
// pack in parts, plan, run; the results against float64 of the checkpoint's own numbers.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/support/cpu_pack.h"
#include "tests/support/quant_plugin.h"

namespace atlas::test {

/// A weight as the checkpoint has it, and its numbers.
struct Checkpoint {
  AtlasDType dtype;
  std::string format;  // the name that the plugin should give
  uint32_t n, k;
  const std::vector<uint8_t>& bytes;
  std::vector<float> values;  // [n, k]
  double tolerance;           // of |error| against sum |w x|
};

class QuantSuite {
 public:
  QuantSuite(const QuantPlugin& plugin, Checkpoint checkpoint)
      : plugin_(plugin),
        checkpoint_(std::move(checkpoint)),
        file_("model.layers.0.mlp.up_proj", checkpoint_.dtype, checkpoint_.n, checkpoint_.k,
              checkpoint_.bytes.data(), checkpoint_.bytes.size()) {
    claim_and_pack();
  }

  /// y for rows of x, by the plugin's own records; `rows` of them exist, of a bucket of more.
  std::vector<float> product(const std::vector<float>& x, uint32_t rows, Split split,
                             uint32_t epilogue = ATLAS_EPILOGUE_NONE, float start = 0.0f) {
    RecordRunner runner;
    std::vector<float> y(size_t{rows} * checkpoint_.n, start);
    AtlasLinearProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows + 2;
    problem.platform = "cpu";
    problem.format = claim_.format;
    problem.n = checkpoint_.n;
    problem.k = checkpoint_.k;
    problem.y_stride = checkpoint_.n;
    problem.x_stride = checkpoint_.k;
    problem.epilogue = epilogue;
    problem.y = runner.buffer(y.data());
    problem.weight = runner.buffer(packed_.data());
    problem.row_count = runner.buffer(&rows);
    problem.workspace = {ATLAS_NO_BUFFER, 0, 0};
    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.linear_needs(&problem, &needs, &error) == ATLAS_OK);
    REQUIRE((needs.fused_epilogues & 1u << epilogue) != 0);
    REQUIRE(needs.workspace_bytes == 0);
    problem.x = runner.buffer(x.data());
    Aligned encoded(needs.encoded_row_bytes * rows);
    if (needs.input_encoding[0] != '\0') {
      AtlasEncodeProblem encode{};
      encode.struct_size = sizeof(encode);
      encode.max_rows = rows + 2;
      encode.platform = "cpu";
      encode.encoding = needs.input_encoding;
      encode.k = checkpoint_.k;
      encode.x = problem.x;
      encode.out = runner.buffer(encoded.data());
      encode.row_count = problem.row_count;
      encode.x_stride = checkpoint_.k;
      REQUIRE(plugin_.api.plan_encode(&encode, &runner.sink, &error) == ATLAS_OK);
      problem.x = encode.out;
    }
    REQUIRE(plugin_.api.plan_linear(&problem, &runner.sink, &error) == ATLAS_OK);
    REQUIRE(runner.emitted.back().bytes_read == packed_.size());
    runner.run(pack_, split);
    return y;
  }

  std::vector<float> gather(const std::vector<uint32_t>& ids) {
    RecordRunner runner;
    const auto rows = static_cast<uint32_t>(ids.size());
    std::vector<float> y(ids.size() * checkpoint_.k);
    AtlasGatherProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows + 2;
    problem.platform = "cpu";
    problem.format = claim_.format;
    problem.n = checkpoint_.n;
    problem.k = checkpoint_.k;
    problem.id_stride = 4;
    problem.ids = runner.buffer(ids.data());
    problem.y = runner.buffer(y.data());
    problem.weight = runner.buffer(packed_.data());
    problem.row_count = runner.buffer(&rows);
    problem.y_stride = checkpoint_.k;
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.plan_gather(&problem, &runner.sink, &error) == ATLAS_OK);
    runner.run(pack_, Split{2, 1});
    return y;
  }

  /// Everything a plugin promises about one weight.
  void check() {
    check_gather();
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    constexpr uint32_t kRows = 21;
    std::vector<float> x(size_t{kRows} * checkpoint_.k);
    for (float& value : x) value = normal(random);
    const std::vector<float> y = product(x, kRows, {});
    check_against_float64(x, y);
    CHECK(product(x, kRows, Split{2, 1}) == y);
    for (const uint32_t rows : {1u, 4u, 9u}) {
      const std::vector<float> some = product(x, rows, Split{2, 3});
      CHECK(std::equal(some.begin(), some.end(), y.begin()));
    }
    const std::vector<float> added = product(x, kRows, {}, ATLAS_EPILOGUE_ADD, 2.5f);
    for (size_t i = 0; i < y.size(); ++i) REQUIRE(added[i] == 2.5f + y[i]);
  }

  const AtlasWeightClaim& claim() const { return claim_; }

 private:
  void claim_and_pack() {
    AtlasError error{sizeof(AtlasError), {}};
    claim_.struct_size = sizeof(claim_);
    REQUIRE(plugin_.api.claim(&file_.query, &claim_, &error) == ATLAS_OK);
    REQUIRE(claim_.claimed == 1);
    REQUIRE(std::string(claim_.format) == checkpoint_.format);
    REQUIRE(claim_.n == checkpoint_.n);
    REQUIRE(claim_.k == checkpoint_.k);
    const uint64_t groups = (claim_.n + claim_.row_group - 1) / claim_.row_group;
    packed_ = Aligned(groups * claim_.group_bytes);
    std::fill_n(packed_.data(), packed_.size(), std::byte{0xc3});
    // Backwards and one group at a time: the order and the parts must not matter.
    for (uint64_t g = groups; g-- > 0;) {
      REQUIRE(plugin_.api.pack(&file_.query, &claim_, g, g + 1,
                               packed_.data() + g * claim_.group_bytes, &error) == ATLAS_OK);
    }
    Aligned whole(packed_.size());
    REQUIRE(plugin_.api.pack(&file_.query, &claim_, 0, groups, whole.data(), &error) == ATLAS_OK);
    REQUIRE(std::memcmp(whole.data(), packed_.data(), packed_.size()) == 0);
  }

  void check_gather() {
    const std::vector<uint32_t> ids = {checkpoint_.n - 1, 0, checkpoint_.n / 2, 0};
    const std::vector<float> rows = gather(ids);
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t row = ids[i / checkpoint_.k];
      REQUIRE(rows[i] == checkpoint_.values[row * checkpoint_.k + i % checkpoint_.k]);
    }
  }

  void check_against_float64(const std::vector<float>& x, const std::vector<float>& y) const {
    const size_t k = checkpoint_.k;
    for (size_t i = 0; i < y.size(); ++i) {
      const float* row = x.data() + i / checkpoint_.n * k;
      const float* weight = checkpoint_.values.data() + i % checkpoint_.n * k;
      double exact = 0;
      double size = 0;
      for (size_t j = 0; j < k; ++j) {
        exact += double{row[j]} * weight[j];
        size += std::fabs(double{row[j]} * weight[j]);
      }
      REQUIRE(std::fabs(y[i] - exact) <= checkpoint_.tolerance * size);
    }
  }

  const QuantPlugin& plugin_;
  const Checkpoint checkpoint_;
  WeightFile file_;
  AtlasWeightClaim claim_{};
  Aligned packed_{0};
  CpuPack pack_;
};

}  // namespace atlas::test
