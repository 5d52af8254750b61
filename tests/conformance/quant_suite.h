// What every quantization plugin must do for every format, driven as the daemon drives it: claim,
// pack in parts, plan, run; the results against float64 of the checkpoint's own numbers, and
// products of experts against plain products, bit for bit.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
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
  std::string name = "weight";
  uint32_t columns = 0;  // of the tensor `name`; 0: k
  std::vector<MoreTensor> more = {};
};

class QuantSuite {
 public:
  QuantSuite(const QuantPlugin& plugin, Checkpoint checkpoint)
      : plugin_(plugin),
        checkpoint_(std::move(checkpoint)),
        file_("model.layers.0.mlp.up_proj", checkpoint_.dtype, checkpoint_.n,
              checkpoint_.columns == 0 ? checkpoint_.k : checkpoint_.columns,
              checkpoint_.bytes.data(), checkpoint_.bytes.size(), checkpoint_.name,
              checkpoint_.more) {
    claim_and_pack();
  }

  /// y for rows of x, by the plugin's own records; `rows` of them exist, of a bucket of more.
  std::vector<float> product(const std::vector<float>& x, uint32_t rows, Split split,
                             uint32_t epilogue = ATLAS_EPILOGUE_NONE, float start = 0.0f) {
    return product_with(packed_.data(), x, rows, split, epilogue, start);
  }
  std::vector<float> product_with(const std::byte* weight, const std::vector<float>& x,
                                  uint32_t rows, Split split,
                                  uint32_t epilogue = ATLAS_EPILOGUE_NONE, float start = 0.0f) {
    RecordRunner runner;
    std::vector<float> y(size_t{rows} * checkpoint_.n, start);
    AtlasLinearProblem problem = a_problem(rows);
    problem.epilogue = epilogue;
    problem.y = runner.buffer(y.data());
    problem.weight = runner.buffer(weight);
    problem.row_count = runner.buffer(&rows);
    const AtlasLinearNeeds needs = needs_of(problem);
    REQUIRE((needs.fused_epilogues & 1u << epilogue) != 0);
    REQUIRE(needs.workspace_bytes == 0);
    Aligned encoded(needs.encoded_row_bytes * rows);
    problem.x = input(runner, needs, x, rows, encoded);
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.plan_linear(&problem, &runner.sink, &error) == ATLAS_OK);
    REQUIRE(runner.emitted.back().bytes_read == packed_.size());
    runner.run(pack_, split);
    return y;
  }

  /// Weights of experts that all differ from their neighbours, further apart than they are long.
  struct Experts {
    uint32_t count;
    uint64_t bytes;  // from one to the next
    Aligned weights;
    const std::byte* at(uint32_t expert) const { return weights.data() + expert * bytes; }
  };
  Experts experts(uint32_t count) const {
    const uint64_t bytes = packed_.size() + 64;
    Experts all{count, bytes, Aligned(count * bytes)};
    std::fill_n(all.weights.data(), all.weights.size(), std::byte{0xc3});
    const uint64_t groups = packed_.size() / claim_.group_bytes;
    for (uint64_t i = 0; i < count * groups; ++i) {
      const uint64_t expert = i / groups;
      std::copy_n(packed_.data() + (i + expert) % groups * claim_.group_bytes, claim_.group_bytes,
                  all.weights.data() + expert * bytes + i % groups * claim_.group_bytes);
    }
    return all;
  }

  static constexpr float kUntouched = -7.25f;

  /// y of a product of experts, and a row more that nothing may touch. `source` empty: absent.
  std::vector<float> grouped(const Experts& experts, const std::vector<float>& x,
                             const std::vector<uint32_t>& offsets,
                             const std::vector<uint32_t>& source, Split split) {
    RecordRunner runner;
    const uint32_t x_rows = static_cast<uint32_t>(x.size() / checkpoint_.k);
    const uint32_t max_rows = offsets.back() + 1;
    std::vector<float> y(size_t{max_rows} * checkpoint_.n, kUntouched);
    const AtlasLinearNeeds needs = needs_of(a_problem(max_rows));
    Aligned encoded(needs.encoded_row_bytes * x_rows);
    AtlasGroupedProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = max_rows;
    problem.platform = "cpu";
    problem.format = claim_.format;
    problem.n = checkpoint_.n;
    problem.k = checkpoint_.k;
    problem.experts = experts.count;
    problem.expert_bytes = experts.bytes;
    problem.x_stride = checkpoint_.k;
    problem.y_stride = checkpoint_.n;
    problem.x = input(runner, needs, x, x_rows, encoded);
    problem.y = runner.buffer(y.data());
    problem.weight = runner.buffer(experts.weights.data());
    problem.offsets = runner.buffer(offsets.data());
    problem.source = {ATLAS_NO_BUFFER, 0, 0};
    if (!source.empty()) problem.source = runner.buffer(source.data());
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.plan_grouped(&problem, &runner.sink, &error) == ATLAS_OK);
    REQUIRE(runner.emitted.back().bytes_read == std::min(max_rows, experts.count) * packed_.size());
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
    for (const uint32_t count : {1u, 5u, 7u}) check_grouped(count);
    if (packed_.size() < 64u << 10) check_grouped(512);
  }

  const AtlasWeightClaim& claim() const { return claim_; }
  const Aligned& packed() const { return packed_; }

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

  AtlasLinearProblem a_problem(uint32_t rows) const {
    AtlasLinearProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows + 2;
    problem.platform = "cpu";
    problem.format = claim_.format;
    problem.n = checkpoint_.n;
    problem.k = checkpoint_.k;
    problem.y_stride = checkpoint_.n;
    problem.x_stride = checkpoint_.k;
    problem.workspace = {ATLAS_NO_BUFFER, 0, 0};
    return problem;
  }

  AtlasLinearNeeds needs_of(const AtlasLinearProblem& problem) const {
    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.linear_needs(&problem, &needs, &error) == ATLAS_OK);
    return needs;
  }

  /// Rows of x as products take them: as they are, or encoded by a record before the product's.
  AtlasBufferRef input(RecordRunner& runner, const AtlasLinearNeeds& needs,
                       const std::vector<float>& x, const uint32_t& rows, Aligned& encoded) const {
    const AtlasBufferRef plain = runner.buffer(x.data());
    if (needs.input_encoding[0] == '\0') return plain;
    AtlasEncodeProblem encode{};
    encode.struct_size = sizeof(encode);
    encode.max_rows = rows + 2;
    encode.platform = "cpu";
    encode.encoding = needs.input_encoding;
    encode.k = checkpoint_.k;
    encode.x = plain;
    encode.out = runner.buffer(encoded.data());
    encode.row_count = runner.buffer(&rows);
    encode.x_stride = checkpoint_.k;
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.plan_encode(&encode, &runner.sink, &error) == ATLAS_OK);
    return encode.out;
  }

  /// Every row of a product of experts has the bits that a product of that row and weight has.
  void check_grouped(uint32_t count) {
    CAPTURE(count);
    std::mt19937 random(count);
    std::normal_distribution<float> normal;
    constexpr uint32_t kMostRows = 130;
    std::vector<float> x(size_t{kMostRows} * checkpoint_.k);
    for (float& value : x) value = normal(random);
    const Experts weights = experts(count);
    for (const uint32_t rows : {0u, 1u, 2u, 8u, 17u, kMostRows}) {
      for (const bool one_expert : {true, false}) {
        for (const bool with_source : {true, false}) {
          CAPTURE(rows);
          CAPTURE(one_expert);
          CAPTURE(with_source);
          std::vector<uint32_t> rows_of(count);
          const uint32_t one = random() % count;
          for (uint32_t i = 0; i < rows; ++i) ++rows_of[one_expert ? one : random() % count];
          std::vector<uint32_t> offsets(1);
          for (const uint32_t each : rows_of) offsets.push_back(offsets.back() + each);
          std::vector<uint32_t> source;
          for (uint32_t i = 0; with_source && i <= rows; ++i)
            source.push_back(random() % kMostRows);
          const Split split = with_source ? Split{2, 3} : Split{};
          check_rows(weights, x, offsets, source, grouped(weights, x, offsets, source, split));
        }
      }
    }
  }

  void check_rows(const Experts& experts, const std::vector<float>& x,
                  const std::vector<uint32_t>& offsets, const std::vector<uint32_t>& source,
                  const std::vector<float>& y) {
    const auto k = static_cast<ptrdiff_t>(checkpoint_.k);
    for (uint32_t e = 0; e < experts.count; ++e) {
      if (offsets[e] == offsets[e + 1]) continue;
      std::vector<float> inputs;
      for (uint32_t i = offsets[e]; i < offsets[e + 1]; ++i) {
        const auto from = x.begin() + k * (source.empty() ? i : source[i]);
        inputs.insert(inputs.end(), from, from + k);
      }
      const std::vector<float> expected =
          product_with(experts.at(e), inputs, offsets[e + 1] - offsets[e], {});
      REQUIRE(std::memcmp(y.data() + size_t{offsets[e]} * checkpoint_.n, expected.data(),
                          expected.size() * sizeof(float)) == 0);
    }
    for (size_t i = size_t{offsets.back()} * checkpoint_.n; i < y.size(); ++i) {
      REQUIRE(y[i] == kUntouched);
    }
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
