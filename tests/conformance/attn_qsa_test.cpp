// Attention plugin `qsa`: its answers while planning, and its records against float64 and against
// themselves, bit for bit, however the rows come.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/qsa.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/numbers.h"
#include "tests/support/sparse_steps.h"

namespace atlas::test {
namespace {

const SparseShape kShapes[] = {
    {4, 2, 32, 4, 16, 8, 4, 16}, {6, 2, 24, 1, 8, 2, 2, 4},    {2, 1, 7, 3, 10, 10, 4, 64},
    {3, 1, 64, 2, 33, 32, 1, 5}, {12, 1, 16, 4, 16, 4, 8, 24}, {24, 2, 8, 2, 8, 0, 32, 96},
};

/// Largest difference of rows 0 .. positions - 1 from float64; counts rows left out.
double largest_error(SparseSteps& steps, const SparseShape& shape, const std::vector<float>& out,
                     uint32_t positions, uint32_t& left_out) {
  const std::vector<double> keys = steps.exact_keys(0, positions / shape.ratio);
  double worst = 0;
  for (uint32_t p = 0; p < positions; ++p) {
    const std::vector<uint32_t> chosen = steps.chosen(0, p, keys);
    if (chosen.empty()) {
      ++left_out;
      continue;
    }
    const auto row = out.begin() + p * steps.width();
    worst =
        std::max(worst, largest_difference({row, row + steps.width()}, steps.exact(0, p, chosen)));
  }
  return worst;
}

std::string answer(const std::function<void(AtlasAttentionProblem&, AtlasIndexer&)>& spoil,
                   bool plan) {
  SparseProblem p;
  fill_sparse_problem(p, {4, 2, 32, 4, 16, 8, 4, 16}, 8, 10);
  spoil(p.problem, p.indexer);
  return refusal(sparse_plugin("qsa"), p.problem, plan);
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("qsa: needs says pages, state, workspace and contract") {
    SparseProblem p;
    fill_sparse_problem(p, {4, 2, 32, 4, 16, 8, 4, 16}, 8, 10);
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    REQUIRE(sparse_plugin("qsa").needs(&p.problem, &needs, nullptr) == ATLAS_OK);
    CHECK(needs.page_tokens == 64);
    CHECK(needs.bytes_per_page == 4 * (2 * 64 * (32 + 32) + 16 * 16));
    CHECK(needs.bytes_per_slot == 4 * 16 * 16);
    CHECK(needs.bytes_per_anchor == 0);
    CHECK(needs.anchor_tokens == 64);
    CHECK(std::string(needs.contract) == "qsa_f32_b256");
    CHECK(std::string(needs.state_layout) == "qsa f32 k4t v16 2x32 index 16/4");
    // A list is one block of places: nothing is split. Lists of 4 blocks, scores of 160.
    CHECK(needs.workspace_bytes == 256 + 8 * 160 * 4);
    p.indexer.budget = 640;  // no sequence has to choose; 3 blocks of places
    REQUIRE(sparse_plugin("qsa").needs(&p.problem, &needs, nullptr) == ATLAS_OK);
    CHECK(needs.workspace_bytes == 256 + 8 * 4 * 3 * (32 + 16) * 4);
    p.problem.max_pages = 4096;  // so long that scores fill what may be spent
    p.problem.max_rows = 512;
    REQUIRE(sparse_plugin("qsa").needs(&p.problem, &needs, nullptr) == ATLAS_OK);
    CHECK(needs.workspace_bytes < (20u << 20));
    CHECK(needs.workspace_bytes > (16u << 20));
  }

  TEST_CASE("qsa: problems that no kernel serves are refused with what was found") {
    for (const bool plan : {false, true}) {
      CAPTURE(plan);
      CHECK(answer([](auto&, auto&) {}, plan).empty());
      CHECK(contains(answer([](auto& p, auto&) { p.platform = "vulkan"; }, plan), "'vulkan'"));
      CHECK(contains(answer([](auto& p, auto&) { p.backend = nullptr; }, plan), "qsa is"));
      CHECK(contains(answer([](auto& p, auto&) { p.kv_heads = 3; }, plan), "4 query heads over 3"));
      CHECK(contains(answer([](auto& p, auto&) { p.heads = 0; }, plan), "0 query heads"));
      CHECK(contains(answer([](auto& p, auto&) { p.head_dim = 1025; }, plan), "head_dim 1025"));
      CHECK(contains(answer([](auto& p, auto&) { p.max_rows = 0; }, plan), "at least one row"));
      CHECK(contains(answer([](auto& p, auto&) { p.struct_size = 8; }, plan), "8 bytes"));
      CHECK(contains(answer([](auto& p, auto&) { p.indexer = nullptr; }, plan), "no indexer"));
      CHECK(contains(answer([](auto&, auto& i) { i.struct_size = 12; }, plan), "12 bytes"));
      CHECK(contains(answer([](auto&, auto& i) { i.heads = 65; }, plan), "indexer heads 65"));
      CHECK(contains(answer([](auto&, auto& i) { i.head_dim = 0; }, plan), "indexer head_dim 0"));
      CHECK(contains(answer([](auto&, auto& i) { i.budget = 0; }, plan), "budget 0"));
      CHECK(contains(answer([](auto&, auto& i) { i.ratio = 3; }, plan), "ratio 3"));
      CHECK(contains(answer([](auto&, auto& i) { i.ratio = 128; }, plan), "ratio 128"));
      CHECK(contains(answer([](auto&, auto& i) { i.ratio = 0; }, plan), "ratio 0"));
      CHECK(contains(answer([](auto&, auto& i) { i.budget = 18; }, plan), "budget of 18"));
      CHECK(contains(answer([](auto&, auto& i) { i.rotary_dim = 18; }, plan), "rotary_dim 18"));
      CHECK(contains(answer([](auto&, auto& i) { i.rotary_dim = 7; }, plan), "rotary_dim 7"));
      CHECK(contains(answer([](auto& p, auto&) { p.max_pages = ~0u; }, plan), "4294967295 pages"));
    }
    CHECK(contains(answer([](auto& p, auto&) { p.q_stride = 127; }, true), "q_stride 127"));
    CHECK(contains(answer([](auto& p, auto&) { p.k_stride = 63; }, true), "k_stride 63"));
    CHECK(contains(answer([](auto& p, auto&) { p.v_stride = 0; }, true), "v_stride 0"));
    CHECK(contains(answer([](auto& p, auto&) { p.out_stride = 1; }, true), "out_stride 1"));
    CHECK(contains(answer([](auto&, auto& i) { i.q_stride = 63; }, true), "q_stride 63"));
    CHECK(contains(answer([](auto&, auto& i) { i.k_stride = 15; }, true), "k_stride 15"));
    CHECK(contains(answer([](auto& p, auto&) { p.scale = NAN; }, true), "scale"));
    CHECK(contains(answer([](auto&, auto& i) { i.epsilon = -1; }, true), "epsilon"));
    CHECK(contains(answer([](auto& p, auto&) { p.max_pages = 0; }, true), "at least one page"));
    CHECK(contains(answer([](auto& p, auto&) { p.page_stride = 33788; }, true), "33792"));
    CHECK(contains(answer([](auto& p, auto&) { p.slot_stride = 1020; }, true), "1024"));
    CHECK(contains(answer([](auto& p, auto&) { p.slots.buffer = ATLAS_NO_BUFFER; }, true),
                   "no buffer"));
    CHECK(contains(
        answer([](auto&, auto& i) { i.inverse_frequencies.buffer = ATLAS_NO_BUFFER; }, true),
        "inverse_frequencies"));
    CHECK(contains(answer([](auto& p, auto&) { p.workspace.buffer = ATLAS_NO_BUFFER; }, true),
                   "workspace"));
  }

  TEST_CASE("qsa: float64's choice and attention, in any chunks with the bits of one step") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 290;
    for (const SparseShape& shape : kShapes) {
      CAPTURE(shape.ratio);
      CAPTURE(shape.head_dim);
      std::vector<float> best;
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        SparseSteps whole(pack, shape, kPositions, kPositions);
        REQUIRE(whole.records().known_to(pack));
        const std::vector<float> expected = whole.step({{0, kPositions}});
        uint32_t left_out = 0;
        if (best.empty() || target.name == "SCALAR") {
          CHECK(largest_error(whole, shape, expected, kPositions, left_out) < 3e-6);
          CHECK(left_out <= 3);
        }
        if (best.empty()) best = expected;
        // Without fused multiply-add bits differ, and so may a choice that hangs on the last ones.
        if (target.name != "SCALAR") CHECK(same_bits(expected, best));
        for (const std::vector<uint32_t>& sizes :
             std::vector<std::vector<uint32_t>>{{1}, {3}, {7}, {32}, {50}, {33, 1, 64, 2, 31}}) {
          CAPTURE(sizes[0]);
          SparseSteps steps(pack, shape, kPositions, 64);
          CHECK(same_bits(expected, in_steps(steps, 0, kPositions, sizes, {2, 3})));
        }
      }
    }
  }

  TEST_CASE("qsa: a row that may attend to everything has the bits of gqa") {
    const CpuPack pack;
    for (SparseShape shape : kShapes) {
      CAPTURE(shape.ratio);
      SparseSteps dense(pack, shape, 320, 320, "gqa");
      const std::vector<float> expected = dense.step({{0, 320}});
      SparseSteps short_steps(pack, shape, 320, 320);
      const std::vector<float> sparse = short_steps.step({{0, 320}});
      // The first row that has to choose, and leaves a block out.
      const size_t first = (shape.budget + shape.ratio - 1) * dense.width();
      CHECK(same_bits({sparse.begin(), sparse.begin() + first},
                      {expected.begin(), expected.begin() + first}));
      CHECK(!same_bits({sparse.begin() + first, sparse.begin() + first + dense.width()},
                       {expected.begin() + first, expected.begin() + first + dense.width()}));
      shape.budget = 320;
      SparseSteps all(pack, shape, 320, 320);
      CHECK(same_bits(all.step({{0, 320}}), expected));
    }
  }

  TEST_CASE("qsa: lists of several blocks of places, split over tasks or not") {
    const CpuPack pack;
    const SparseShape shape{4, 2, 24, 2, 16, 8, 4, 516};
    constexpr uint32_t kPositions = 900;
    SparseSteps whole(pack, shape, kPositions, kPositions);
    const std::vector<float> expected = whole.step({{0, kPositions}}, {2, 1});
    uint32_t left_out = 0;
    CHECK(largest_error(whole, shape, expected, kPositions, left_out) < 3e-6);
    CHECK(left_out <= 5);
    SparseSteps steps(pack, shape, kPositions, 128);
    CHECK(same_bits(expected, in_steps(steps, 0, kPositions, {128, 1, 1, 5, 100, 8}, {3, 1})));
  }

  TEST_CASE("qsa: rejected rows leave no trace") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 200;
    for (const SparseShape& shape : kShapes) {
      CAPTURE(shape.ratio);
      SparseSteps whole(pack, shape, kPositions, kPositions);
      const std::vector<float> expected = whole.step({{0, kPositions}});
      for (uint32_t seed = 0; seed < 4; ++seed) {
        CAPTURE(seed);
        SparseSteps steps(pack, shape, kPositions + 8, 8);
        CHECK(same_bits(expected, in_verify_steps(steps, 0, kPositions, seed, 32)));
      }
    }
  }

  TEST_CASE("qsa: a sequence goes on from an anchor's position in another slot") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 200;
    for (const SparseShape& shape : kShapes) {
      CAPTURE(shape.ratio);
      SparseSteps steps(pack, shape, kPositions, 64);
      const std::vector<float> expected = in_steps(steps, 1, kPositions, {11});
      steps.step({{5, 45}});  // the slot's ring holds another text
      steps.set_text(5, 1);
      steps.rows().share_pages(5, 1);
      for (const uint32_t index : {32u, 96u, 160u}) {
        CAPTURE(index);
        for (const uint32_t size : {1u, 3u, 40u}) {
          steps.rows().restart(5, 0, index);
          const std::vector<float> rest = in_steps(steps, 5, kPositions, {size});
          CHECK(same_bits(rest, {expected.begin() + index * steps.width(), expected.end()}));
        }
      }
    }
  }

  TEST_CASE("qsa: of blocks with one score the first are chosen") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 170;
    for (const uint32_t ratio : {1u, 2u, 4u, 8u}) {
      CAPTURE(ratio);
      const SparseShape shape{2, 1, 16, 2, 12, 0, ratio, 5 * ratio};
      SparseSteps steps(pack, shape, kPositions, kPositions);
      SparseText& text = steps.text(0);
      // Every block has one of three keys: zeros, some x and 2 x, which once normed is x again; and
      // queries are multiples of the gain's sign pattern, so x scores above zero everywhere.
      const std::vector<float> norm = normal_values(12, 1001);
      for (uint32_t p = 0; p < kPositions; ++p) {
        const uint32_t kind = p / ratio * 7 % 10;
        for (uint32_t d = 0; d < 12; ++d) {
          text.index_k[p * 12 + d] = kind < 6 ? 0.0f : kind < 8 ? 64.0f : 128.0f;
          for (uint32_t h = 0; h < 2; ++h) {
            text.index_q[(p * 2 + h) * 12 + d] = std::copysign(1.0f, norm[d]);
          }
        }
      }
      const std::vector<float> out = steps.step({{0, kPositions}});
      double worst = 0;
      for (uint32_t p = 0; p < kPositions; ++p) {
        std::vector<uint32_t> blocks, positions;
        const uint32_t count = (p + 1) / ratio;
        for (const bool high : {true, false}) {
          for (uint32_t b = 0; b < count && blocks.size() < 5; ++b) {
            if ((b * 7 % 10 >= 6) == high) blocks.push_back(b);
          }
        }
        std::sort(blocks.begin(), blocks.end());
        for (const uint32_t b : blocks) {
          for (uint32_t i = 0; i < ratio; ++i) positions.push_back(b * ratio + i);
        }
        for (uint32_t i = count * ratio; i <= p; ++i) positions.push_back(i);
        worst = std::max(worst, largest_difference({out.begin() + p * steps.width(),
                                                    out.begin() + (p + 1) * steps.width()},
                                                   steps.exact(0, p, positions)));
      }
      CHECK(worst < 2e-6);
    }
  }

  TEST_CASE("qsa: ragged steps give every sequence the bits that it has alone") {
    const CpuPack pack;
    const SparseShape shape{4, 2, 32, 4, 16, 8, 4, 16};
    const std::vector<std::vector<RowPart>> schedule = {
        {{3, 70}, {5, 1}, {0, 20}},
        {{0, 1}, {3, 8, 3}, {5, 31}, {7, 40}},
        {{7, 1}, {5, 8, 1}, {3, 1}, {0, 8, 5}},
        {{0, 60}, {3, 3, 2}, {5, 5}, {7, 24}},
        {{5, 100}, {3, 8, 4}},
        {{3, 1}, {5, 1}, {7, 1}},
    };
    for (const Split split : {Split{1, 0}, Split{3, 1}, Split{2, 3}}) {
      CAPTURE(split.chunk);
      SparseSteps together(pack, shape, 200, 128);
      std::map<uint32_t, std::vector<float>> rows;
      for (const std::vector<RowPart>& parts : schedule) {
        const std::vector<float> out = together.step(parts, split);
        auto at = out.begin();
        for (const RowPart& part : parts) {
          const size_t count = std::min(part.rows, part.counted) * together.width();
          append(rows[part.slot], {at, at + count});
          at += count;
        }
        REQUIRE(at == out.end());
      }
      for (const auto& [slot, out] : rows) {
        CAPTURE(slot);
        SparseSteps alone(pack, shape, 200, 200);
        CHECK(same_bits(out, alone.step({{slot, together.rows().length(slot)}})));
      }
    }
  }

  TEST_CASE("qsa: at the end of 262,144 positions a row has the same bits in all steps") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 262144, kFirst = kPositions - 96;
    const SparseShape shape{2, 1, 8, 2, 8, 4, 4, 2048};
    std::vector<float> best;
    // 96 rows are more than the workspace has scores for: some are scored by qsa_select itself.
    for (const uint32_t rows : {96u, 8u, 1u}) {
      CAPTURE(rows);
      SparseSteps steps(pack, shape, kPositions, rows, "qsa", 1);
      steps.set_first(kFirst);
      const std::vector<float> noise = normal_values(1 << 16, 77);
      for (size_t i = 0; i < steps.pages().size(); ++i) steps.pages()[i] = noise[i % 65521];
      steps.rows().restart(0, 0, kFirst);
      const std::vector<float> out =
          in_steps(steps, 0, rows == 1 ? kFirst + 20 : kPositions, {rows}, {2, 1});
      if (best.empty()) {
        best = out;
        const std::vector<double> keys = steps.stored_keys(0, kPositions / 4);
        uint32_t compared = 0;
        for (uint32_t p = kPositions - 5; p < kPositions; ++p) {
          const std::vector<uint32_t> chosen = steps.chosen(0, p, keys);
          if (chosen.empty()) continue;
          ++compared;
          const auto row = out.begin() + (p - kFirst) * steps.width();
          CHECK(largest_difference({row, row + steps.width()}, steps.exact_stored(0, p, chosen)) <
                2e-6);
        }
        CHECK(compared >= 2);
      }
      CHECK(same_bits(out, {best.begin(), best.begin() + out.size()}));
    }
  }

  TEST_CASE("qsa: what is not a number stays with its sequence") {
    const CpuPack pack;
    const SparseShape shape{4, 2, 32, 4, 16, 8, 4, 16};
    SparseSteps clean(pack, shape, 128, 256), spoilt(pack, shape, 128, 256);
    const std::vector<float> expected = clean.step({{0, 128}, {1, 128}});
    SparseText& text = spoilt.text(0);
    for (size_t i = 0; i < 16; ++i) text.index_k[64 * 16 + i] = NAN;
    for (size_t i = 0; i < 64; ++i) text.v[64 * 64 + i] = NAN;
    const std::vector<float> out = spoilt.step({{0, 128}, {1, 128}});
    const size_t bad = 64 * spoilt.width(), second = 128 * spoilt.width();
    CHECK(same_bits({out.begin(), out.begin() + bad}, {expected.begin(), expected.begin() + bad}));
    CHECK(
        same_bits({out.begin() + second, out.end()}, {expected.begin() + second, expected.end()}));
    CHECK(std::isnan(out[bad]));  // its own row sees it in the tail
  }
}

}  // namespace atlas::test
