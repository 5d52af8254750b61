// Products of experts: how their work is dealt out, and that every instruction set gives a row the
// bits of its plain product.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/cpu_linear.h"
#include "kernels/cpu/grouped_items.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/float_weights.h"
#include "tests/support/gguf_weights.h"

namespace atlas::test {
namespace {

using kernels::GroupedParams;
using kernels::cpu::GroupedItem;
using kernels::cpu::GroupedItems;

std::vector<uint32_t> offsets_of(const std::vector<uint32_t>& rows) {
  std::vector<uint32_t> offsets(1);
  for (const uint32_t each : rows) offsets.push_back(offsets.back() + each);
  return offsets;
}

GroupedParams params_of(const std::vector<uint32_t>& offsets, uint32_t n) {
  GroupedParams params{};
  params.offsets = offsets.data();
  params.n = n;
  params.experts = static_cast<uint32_t>(offsets.size() - 1);
  params.tasks = kernels::grouped_tasks(n, std::max(1u, std::min(offsets.back(), params.experts)));
  return params;
}

std::vector<GroupedItem> items_of(const GroupedParams& params, uint32_t begin, uint32_t end) {
  std::vector<GroupedItem> all;
  GroupedItems items(params, begin, end);
  for (GroupedItem item; items.next(item);) all.push_back(item);
  return all;
}

/// How often row group g of expert e is computed, by tasks in ranges of `chunk`.
std::map<std::pair<uint32_t, uint32_t>, uint32_t> coverage(const GroupedParams& params,
                                                           uint32_t chunk) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> times;
  for (uint32_t begin = 0; begin < params.tasks; begin += chunk) {
    for (const GroupedItem& item : items_of(params, begin, std::min(params.tasks, begin + chunk))) {
      REQUIRE(item.row_begin == params.offsets[item.expert]);
      REQUIRE(item.row_end == params.offsets[item.expert + 1]);
      REQUIRE(item.row_begin < item.row_end);
      for (uint32_t g = item.group_begin; g < item.group_end; ++g) ++times[{item.expert, g}];
    }
  }
  return times;
}

/// A weight for each of some experts, one behind the other, for kernels `linear` and `grouped`.
struct Experts {
  std::string format;
  bool encoded;
  uint32_t n, k;
  std::vector<std::vector<std::byte>> weights;
};

constexpr uint32_t kExperts = 3;

Experts block_experts(const char* format, bool encoded, uint32_t n, uint32_t blocks) {
  const quant_gguf::BlockFormat& of = block_format(format);
  Experts experts{
      std::string(format) + (encoded ? "" : "_f32"), encoded, n, blocks * of.layout.block(), {}};
  for (uint32_t e = 0; e < kExperts; ++e) {
    const GgufWeights weights(of, n, experts.k, e + 1);
    experts.weights.emplace_back(weights.packed.data(),
                                 weights.packed.data() + weights.packed.size());
  }
  return experts;
}

Experts float_experts(kernels::FloatLayout layout, uint32_t n, uint32_t k) {
  Experts experts{name_of(layout), false, n, k, {}};
  for (uint32_t e = 0; e < kExperts; ++e) {
    const FloatWeights weights(layout, n, k, e + 1);
    experts.weights.emplace_back(weights.packed.data(),
                                 weights.packed.data() + weights.packed.size());
  }
  return experts;
}

/// Rows of outputs that differ between the two kernels, over every expert and two row counts.
size_t wrong_rows(const CpuPack& pack, const Experts& experts) {
  constexpr uint32_t kRows = 20;
  const uint64_t x_bytes =
      experts.encoded ? kernels::i16b32_row_bytes(experts.k) : experts.k * sizeof(float);
  Aligned x(kRows * x_bytes);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t{kRows} * experts.k);
  for (float& value : values) value = normal(random);
  if (experts.encoded) {
    for (size_t b = 0; b < values.size() / 32; ++b) {
      kernels::encode_i16b32_block(&values[b * 32], x.as<kernels::I16B32Block>() + b);
    }
  } else {
    std::memcpy(x.data(), values.data(), x.size());
  }
  std::vector<std::byte> weights;
  for (const auto& each : experts.weights) weights.insert(weights.end(), each.begin(), each.end());
  const std::vector<uint32_t> offsets = offsets_of({13, 0, 6});
  std::vector<uint32_t> source;
  for (uint32_t i = 0; i < offsets.back(); ++i) source.push_back(i * 7 % kRows);
  std::vector<float> y(size_t{offsets.back()} * experts.n);
  GroupedParams params = params_of(offsets, experts.n);
  params.x = x.data();
  params.weight = weights.data();
  params.y = y.data();
  params.source = source.data();
  params.x_row_bytes = x_bytes;
  params.y_stride = experts.n;
  params.expert_bytes = experts.weights[0].size();
  params.k = experts.k;
  pack.run("grouped_" + experts.format, params, params.tasks, Split{2, 1});

  size_t wrong = 0;
  for (uint32_t e = 0; e < kExperts; ++e) {
    std::vector<float> plain(size_t{kRows} * experts.n);
    kernels::LinearParams linear{};
    linear.x = x.data();
    linear.weight = experts.weights[e].data();
    linear.y = plain.data();
    linear.row_count = &kRows;
    linear.x_row_bytes = x_bytes;
    linear.y_stride = experts.n;
    linear.n = experts.n;
    linear.k = experts.k;
    pack.run("linear_" + experts.format, linear, kernels::linear_tasks(experts.n));
    for (uint32_t i = offsets[e]; i < offsets[e + 1]; ++i) {
      wrong += std::memcmp(&y[size_t{i} * experts.n], &plain[size_t{source[i]} * experts.n],
                           experts.n * sizeof(float)) != 0;
    }
  }
  return wrong;
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("grouped: every row group of every expert with rows is computed once") {
    std::mt19937 random(3);
    for (const uint32_t experts : {1u, 5u, 7u, 512u}) {
      for (const uint32_t n : {1u, 16u, 45u, 512u, 2100u}) {
        for (const uint32_t rows : {0u, 1u, 10u, 700u}) {
          std::vector<uint32_t> rows_of(experts);
          for (uint32_t i = 0; i < rows; ++i) ++rows_of[random() % experts];
          const std::vector<uint32_t> offsets = offsets_of(rows_of);
          const GroupedParams params = params_of(offsets, n);
          const size_t groups = (n + 15) / 16;
          const auto busy =
              experts - static_cast<size_t>(std::count(rows_of.begin(), rows_of.end(), 0u));
          for (const uint32_t chunk : {1u, 3u, 1000u}) {
            CAPTURE(experts);
            CAPTURE(n);
            CAPTURE(rows);
            CAPTURE(chunk);
            const auto times = coverage(params, chunk);
            REQUIRE(times.size() == busy * groups);
            for (const auto& [part, count] : times) REQUIRE(count == 1);
          }
        }
      }
    }
  }

  TEST_CASE("grouped: one row with 10 of 512 experts keeps all tasks evenly busy") {
    std::vector<uint32_t> rows_of(512);
    for (uint32_t i = 0; i < 10; ++i) rows_of[i * 51 + 3] = 1;
    const std::vector<uint32_t> offsets = offsets_of(rows_of);
    const GroupedParams params = params_of(offsets, 512);  // 320 row groups
    CHECK(params.tasks == 128);
    for (uint32_t task = 0; task < params.tasks; ++task) {
      const size_t groups = items_of(params, task, task + 1).size();
      CHECK(groups >= 2);
      CHECK(groups <= 3);
    }
  }

  TEST_CASE("grouped: every instruction set has the bits of plain products") {
    const CpuPack pack;
    for (const Experts& experts :
         {block_experts("q4_1", true, 45, 3), block_experts("q6_k", true, 45, 2),
          block_experts("q8_0", true, 33, 5), block_experts("q4_1", false, 45, 11),
          block_experts("q5_k", false, 17, 2), float_experts(kernels::FloatLayout::kBF16, 45, 301),
          float_experts(kernels::FloatLayout::kF16, 17, 77),
          float_experts(kernels::FloatLayout::kF32, 33, 600)}) {
      CAPTURE(experts.format);
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        CHECK(wrong_rows(pack, experts) == 0);
      }
    }
  }
}

}  // namespace atlas::test
