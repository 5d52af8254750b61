// Attention plugin `gdn`: its answers while planning, and its records against the recurrence in
// float64 and against themselves, bit for bit, however the rows come.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/gdn.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/delta_steps.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using kernels::GdnShape;

// key heads, value heads, key dim, value dim, taps
const GdnShape kShapes[] = {
    {2, 6, 16, 16, 4}, {1, 1, 8, 12, 2}, {2, 4, 7, 33, 3}, {1, 3, 128, 128, 4}, {3, 3, 20, 8, 1},
};

std::string answer(const std::function<void(AtlasAttentionProblem&, AtlasDelta&)>& spoil,
                   bool plan) {
  DeltaProblem p;
  fill_problem(p, {2, 6, 16, 24, 4}, 8);
  spoil(p.problem, p.delta);
  return refusal(gdn(), p.problem, plan);
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gdn: needs says state, anchors and contract") {
    DeltaProblem p;
    fill_problem(p, {2, 6, 16, 24, 4}, 8);
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    REQUIRE(gdn().needs(&p.problem, &needs, nullptr) == ATLAS_OK);
    CHECK(needs.page_tokens == 64);
    CHECK(needs.bytes_per_page == 0);
    CHECK(needs.anchor_tokens == 64);
    const uint64_t channels = 2 * 2 * 16 + 6 * 24;
    CHECK(needs.bytes_per_slot == 4 * (16 * channels + 2 * 16 * 72 + 6 * 64 * 32 + 6 * 64));
    CHECK(needs.bytes_per_anchor == 4 * (6 * 16 * 32 + 3 * channels));
    CHECK(needs.workspace_bytes == 8 * 4 * (2 * 2 * 16 + 6 * 32));
    CHECK(std::string(needs.contract) == "gdn_f32_c64");
    CHECK(std::string(needs.state_layout) == "gdn f32 v16 k8 2x16 6x24 conv 4");
  }

  TEST_CASE("gdn: problems that no kernel serves are refused with what was found") {
    for (const bool plan : {false, true}) {
      CAPTURE(plan);
      CHECK(answer([](auto&, auto&) {}, plan).empty());
      CHECK(contains(answer([](auto& p, auto&) { p.platform = "toaster"; }, plan), "'toaster'"));
      CHECK(contains(answer([](auto& p, auto&) { p.platform = nullptr; }, plan), "platform"));
      CHECK(contains(answer([](auto& p, auto&) { p.backend = "gqa"; }, plan), "'gqa'"));
      CHECK(contains(answer([](auto& p, auto&) { p.delta = nullptr; }, plan), "no delta"));
      CHECK(contains(answer([](auto& p, auto&) { p.struct_size = 8; }, plan), "8 bytes"));
      CHECK(contains(answer([](auto&, auto& d) { d.struct_size = 12; }, plan), "12 bytes"));
      CHECK(
          contains(answer([](auto&, auto& d) { d.key_heads = 4; }, plan), "6 value heads over 4"));
      CHECK(contains(answer([](auto&, auto& d) { d.key_heads = 0; }, plan), "0 key heads"));
      CHECK(contains(answer([](auto&, auto& d) { d.value_heads = 0; }, plan), "0 value heads"));
      CHECK(contains(answer([](auto&, auto& d) { d.value_heads = 8192; }, plan), "at most 4096"));
      CHECK(contains(answer([](auto&, auto& d) { d.key_dim = 257; }, plan), "key_dim 257"));
      CHECK(contains(answer([](auto&, auto& d) { d.value_dim = 0; }, plan), "value_dim 0"));
      CHECK(contains(answer([](auto&, auto& d) { d.conv_kernel = 17; }, plan), "conv_kernel 17"));
      CHECK(contains(answer([](auto& p, auto&) { p.max_rows = 0; }, plan), "at least one row"));
      CHECK(contains(answer([](auto& p, auto&) { p.max_sequences = 0; }, plan), "one sequence"));
    }
    CHECK(contains(answer([](auto&, auto& d) { d.qkv_stride = 207; }, true), "qkv_stride 207"));
    CHECK(contains(answer([](auto&, auto& d) { d.b_stride = 5; }, true), "b_stride 5"));
    CHECK(contains(answer([](auto&, auto& d) { d.a_stride = 0; }, true), "a_stride 0"));
    CHECK(contains(answer([](auto& p, auto&) { p.out_stride = 143; }, true), "out_stride 143"));
    CHECK(contains(answer([](auto& p, auto&) { p.slot_stride = 64; }, true), "slot_stride 64"));
    CHECK(contains(answer([](auto& p, auto&) { p.anchor_stride += 2; }, true), "anchor_stride"));
    const auto on_gpu = [](auto& p, auto&) { p.platform = "h200"; };
    CHECK(answer(on_gpu, true).empty());
    const auto unaligned = [](auto& p, auto&) { p.platform = "h200", p.slot_stride += 4; };
    CHECK(contains(answer(unaligned, true), "units of 16"));
    CHECK(contains(answer([](auto& p, auto&) { p.rows.buffer = ATLAS_NO_BUFFER; }, true),
                   "no buffer"));
    CHECK(contains(answer([](auto&, auto& d) { d.conv.buffer = ATLAS_NO_BUFFER; }, true),
                   "no buffer"));
  }

  TEST_CASE("gdn: the recurrence of float64, in any chunks with the bits of one step") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 150;
    for (const GdnShape& shape : kShapes) {
      CAPTURE(shape.key_dim);
      CAPTURE(shape.value_dim);
      std::vector<float> best;
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        DeltaSteps whole(pack, shape, kPositions, kPositions);
        REQUIRE(whole.records().known_to(pack));
        const std::vector<float> expected = whole.step({{0, kPositions}});
        if (best.empty()) {
          best = expected;
          CHECK(largest_difference(best, whole.exact(0, kPositions)) < 3e-6);
        }
        if (target.name == "SCALAR") {  // no fused multiply-add
          CHECK(largest_difference(expected, {best.begin(), best.end()}) < 3e-6);
        } else {
          CHECK(same_bits(expected, best));
        }
        for (const std::vector<uint32_t>& sizes :
             std::vector<std::vector<uint32_t>>{{1}, {3}, {7}, {32}, {50}, {33, 1, 64, 2, 31}}) {
          CAPTURE(sizes[0]);
          DeltaSteps steps(pack, shape, kPositions, 64);
          CHECK(same_bits(expected, in_steps(steps, 0, kPositions, sizes, {2, 3})));
        }
      }
    }
  }

  TEST_CASE("gdn: rejected rows leave no trace") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 140;
    for (const GdnShape& shape : kShapes) {
      CAPTURE(shape.key_dim);
      DeltaSteps whole(pack, shape, kPositions, kPositions);
      const std::vector<float> expected = whole.step({{0, kPositions}});
      for (uint32_t seed = 0; seed < 4; ++seed) {
        CAPTURE(seed);
        DeltaSteps steps(pack, shape, kPositions, 8);
        CHECK(same_bits(expected, in_verify_steps(steps, 0, kPositions, seed, kernels::kGdnChunk)));
      }
    }
  }

  TEST_CASE("gdn: a sequence goes on from an anchor in another slot, which stays as it is") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 150;
    for (const GdnShape& shape : kShapes) {
      CAPTURE(shape.key_dim);
      DeltaSteps steps(pack, shape, kPositions, 64);
      std::vector<float> expected;
      std::map<uint32_t, uint32_t> anchors;  // index: anchor
      while (steps.rows().length(1) < kPositions) {
        append(expected, steps.step({{1, std::min(11u, kPositions - steps.rows().length(1))}}));
        anchors[steps.rows().anchor_index(1)] = steps.rows().anchor(1);
      }
      REQUIRE(anchors.size() == 3);
      // The slot is used by another text first.
      steps.step({{5, 45}});
      steps.set_text(5, 1);
      for (const auto& [index, anchor] : anchors) {
        CAPTURE(index);
        const bool none = anchor == kernels::kNoAnchor;
        const std::vector<float> before = none ? std::vector<float>() : steps.anchor(anchor);
        for (const uint32_t size : {1u, 2u, 40u}) {
          steps.rows().restart(5, anchor, index);
          const std::vector<float> rest = in_steps(steps, 5, kPositions, {size});
          CHECK(same_bits(rest, {expected.begin() + index * steps.width(), expected.end()}));
        }
        if (!none) CHECK(same_bits(before, steps.anchor(anchor)));
      }
    }
  }

  TEST_CASE("gdn: an anchor is the same whether its chunk came in one step or in many") {
    const CpuPack pack;
    const GdnShape shape{2, 4, 12, 20, 4};
    DeltaSteps many(pack, shape, 130, 64), one(pack, shape, 130, 130);
    in_steps(many, 0, 129, {5});
    one.step({{0, 129}});
    REQUIRE(many.rows().anchor_index(0) == 128);
    REQUIRE(one.rows().anchor_index(0) == 128);
    CHECK(same_bits(many.anchor(many.rows().anchor(0)), one.anchor(one.rows().anchor(0))));
  }

  TEST_CASE("gdn: ragged steps give every sequence the bits that it has alone") {
    const CpuPack pack;
    const GdnShape shape{2, 6, 16, 16, 4};
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
      DeltaSteps together(pack, shape, 200, 128);
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
        DeltaSteps alone(pack, shape, 200, 200);
        CHECK(same_bits(out, alone.step({{slot, together.rows().length(slot)}})));
      }
    }
  }

  TEST_CASE("gdn: what is not a number stays with its sequence") {
    const CpuPack pack;
    const GdnShape shape{1, 2, 16, 16, 4};
    DeltaSteps clean(pack, shape, 80, 160), spoilt(pack, shape, 80, 160);
    const std::vector<float> expected = clean.step({{0, 80}, {1, 80}});
    for (size_t c = 0; c < kernels::gdn_channels(shape); ++c) {
      spoilt.text(0).qkv[40 * kernels::gdn_channels(shape) + c] = NAN;
    }
    const std::vector<float> out = spoilt.step({{0, 80}, {1, 80}});
    const size_t bad = 40 * spoilt.width(), second = 80 * spoilt.width();
    CHECK(same_bits({out.begin(), out.begin() + bad}, {expected.begin(), expected.begin() + bad}));
    CHECK(
        same_bits({out.begin() + second, out.end()}, {expected.begin() + second, expected.end()}));
    for (size_t i = bad; i < second; ++i) CHECK(std::isnan(out[i]));
  }
}

}  // namespace atlas::test
