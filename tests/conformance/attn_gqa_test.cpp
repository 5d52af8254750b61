// Attention plugin `gqa`: its answers while planning, and its records against float64 and against
// themselves, bit for bit, however the rows come.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tests/support/attention_steps.h"
#include "tests/support/cpu_targets.h"

namespace atlas::test {
namespace {

using Part = AttentionSteps::Part;

const AttentionShape kShapes[] = {{9, 3, 64}, {4, 4, 16}, {8, 1, 80}, {3, 1, 7}, {2, 1, 130}};

/// Rows 0 .. positions - 1 of slot `slot`, in steps of the sizes given in turn.
std::vector<float> in_steps(AttentionSteps& steps, uint32_t slot, uint32_t positions,
                            const std::vector<uint32_t>& sizes, Split split = {}) {
  std::vector<float> all;
  for (uint32_t done = 0, i = 0; done < positions; ++i) {
    const uint32_t rows = std::min(sizes[i % sizes.size()], positions - done);
    append(all, steps.step({{slot, rows}}, split));
    done += rows;
  }
  return all;
}

std::string answer(const std::function<void(AtlasAttentionProblem&)>& spoil, bool plan) {
  AtlasAttentionProblem problem = attention_problem({9, 3, 64}, 8, 10);
  spoil(problem);
  return refusal(gqa_plugin(), problem, plan);
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gqa: needs says pages, workspace and contract") {
    AtlasAttentionProblem problem = attention_problem({9, 3, 64}, 4, 10);
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    REQUIRE(gqa_plugin().needs(&problem, &needs, nullptr) == ATLAS_OK);
    CHECK(needs.page_tokens == 64);
    CHECK(needs.bytes_per_page == 3 * 2 * 64 * 64 * 4);
    CHECK(std::string(needs.contract) == "gqa_f32_b256");
    CHECK(std::string(needs.state_layout) == "gqa f32 k64t v16 heads 3 dim 64");
    // Arrivals of 4 rows and 3 heads, then 3 blocks of 9 heads a row.
    CHECK(needs.workspace_bytes == 256 + 4 * 9 * 3 * (64 + 16) * 4);
    problem.max_pages = 4;  // one block: nothing is ever split
    REQUIRE(gqa_plugin().needs(&problem, &needs, nullptr) == ATLAS_OK);
    CHECK(needs.workspace_bytes == 0);
    problem.max_pages = 4096;  // so long that a few rows' partials fill what may be spent
    problem.max_rows = 512;
    REQUIRE(gqa_plugin().needs(&problem, &needs, nullptr) == ATLAS_OK);
    CHECK(needs.workspace_bytes <= (16u << 20) + 4096);
    CHECK(needs.workspace_bytes > (12u << 20));
  }

  TEST_CASE("gqa: problems that no kernel serves are refused with what was found") {
    for (const bool plan : {false, true}) {
      CAPTURE(plan);
      CHECK(answer([](auto&) {}, plan).empty());
      CHECK(contains(answer([](auto& p) { p.platform = "vulkan"; }, plan), "'vulkan'"));
      CHECK(contains(answer([](auto& p) { p.platform = nullptr; }, plan), "platform"));
      CHECK(contains(answer([](auto& p) { p.backend = "mla"; }, plan), "'mla'"));
      CHECK(contains(answer([](auto& p) { p.kv_heads = 2; }, plan), "9 query heads over 2"));
      CHECK(contains(answer([](auto& p) { p.kv_heads = 0; }, plan), "0 key heads"));
      CHECK(contains(answer([](auto& p) { p.heads = 0; }, plan), "0 query heads"));
      CHECK(contains(answer([](auto& p) { p.heads = 3'000'000'000u; }, plan), "at most 4096"));
      CHECK(contains(answer([](auto& p) { p.head_dim = 0; }, plan), "head_dim 0"));
      CHECK(contains(answer([](auto& p) { p.head_dim = 1025; }, plan), "head_dim 1025"));
      CHECK(contains(answer([](auto& p) { p.max_rows = 0; }, plan), "at least one row"));
      CHECK(contains(answer([](auto& p) { p.struct_size = 8; }, plan), "8 bytes"));
    }
    CHECK(contains(answer([](auto& p) { p.q_stride = 575; }, true), "q_stride 575"));
    CHECK(contains(answer([](auto& p) { p.k_stride = 191; }, true), "k_stride 191"));
    CHECK(contains(answer([](auto& p) { p.v_stride = 0; }, true), "v_stride 0"));
    CHECK(contains(answer([](auto& p) { p.out_stride = 575; }, true), "out_stride 575"));
    CHECK(contains(answer([](auto& p) { p.scale = NAN; }, true), "scale"));
    CHECK(contains(answer([](auto& p) { p.max_pages = 0; }, true), "at least one page"));
    CHECK(contains(answer([](auto& p) { p.page_stride = 98300; }, true), "98304"));
    CHECK(contains(answer([](auto& p) { p.page_stride = 98306; }, true), "page_stride"));
    CHECK(contains(answer([](auto& p) { p.out.buffer = ATLAS_NO_BUFFER; }, true), "no buffer"));
    CHECK(
        contains(answer([](auto& p) { p.workspace.buffer = ATLAS_NO_BUFFER; }, true), "workspace"));
  }

  TEST_CASE(
      "gqa: contexts of 1 to 200, a row at a time or in chunks, with the bits of one prefill") {
    const CpuPack pack;
    CHECK(pack.params_digest("gqa_write") == kernels::kGqaWriteParamsDigest);
    CHECK(pack.params_digest("gqa_attend") == kernels::kGqaAttendParamsDigest);
    constexpr uint32_t kPositions = 200;
    for (const AttentionShape& shape : kShapes) {
      CAPTURE(shape.heads);
      CAPTURE(shape.head_dim);
      std::vector<float> best;
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        AttentionSteps prefill(pack, shape, kPositions, kPositions);
        const std::vector<float> whole = prefill.step({{0, kPositions}});
        if (best.empty()) {
          best = whole;
          double worst = 0;
          const size_t width = whole.size() / kPositions;
          for (uint32_t p = 0; p < kPositions; ++p) {
            worst = std::max(worst, largest_difference({whole.begin() + p * width,
                                                        whole.begin() + (p + 1) * width},
                                                       prefill.exact(0, p)));
          }
          CHECK(worst < 2e-6);
        }
        if (target.name != "SCALAR") {
          CHECK(same_bits(whole, best));
        } else {  // no fused multiply-add
          CHECK(largest_difference(whole, {best.begin(), best.end()}) < 2e-6);
        }
        AttentionSteps decode(pack, shape, kPositions, 1);
        CHECK(same_bits(whole, in_steps(decode, 0, kPositions, {1})));
        AttentionSteps chunks(pack, shape, kPositions, 64);
        CHECK(same_bits(whole, in_steps(chunks, 0, kPositions, {7, 64, 1, 2, 33}, {3, 5})));
      }
    }
  }

  TEST_CASE("gqa: ragged steps give every sequence the bits that it has alone") {
    const CpuPack pack;
    const AttentionShape shape{9, 3, 64};
    constexpr uint32_t kPositions = 640;
    // What each slot does in each step: prefill chunks beside decode rows, some across pages and
    // blocks.
    const std::vector<std::vector<Part>> schedule = {
        {{3, 70}, {5, 1}, {0, 20}},
        {{0, 1}, {3, 1}, {5, 63}, {7, 40}},
        {{7, 1}, {5, 1}, {3, 1}, {0, 1}},
        {{0, 60}, {3, 3}, {5, 5}, {7, 24}},
        {{5, 100}, {3, 8}},
        {{3, 1}, {5, 1}, {7, 1}},
        {{5, 90}, {3, 1}},
        {{5, 4}, {3, 4}, {7, 2}},
    };
    for (const Split split : {Split{1, 0}, Split{3, 1}, Split{2, 3}}) {
      CAPTURE(split.chunk);
      AttentionSteps together(pack, shape, kPositions, 128);
      std::map<uint32_t, std::vector<float>> rows;
      std::map<uint32_t, uint32_t> lengths;
      for (const std::vector<Part>& parts : schedule) {
        const std::vector<float> out = together.step(parts, split);
        size_t at = 0;
        for (const Part& part : parts) {
          const size_t count = size_t{part.rows} * 9 * 64;
          append(rows[part.slot], {out.begin() + at, out.begin() + at + count});
          lengths[part.slot] += part.rows;
          at += count;
        }
      }
      for (const auto& [slot, length] : lengths) {
        CAPTURE(slot);
        AttentionSteps alone(pack, shape, kPositions, kPositions);
        CHECK(same_bits(rows[slot], alone.step({{slot, length}})));
      }
    }
  }

  TEST_CASE("gqa: at 8,192 positions a row has the same bits in decode, verify and prefill") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 8192, kLast = 20;
    for (const AttentionShape& shape : {AttentionShape{3, 1, 64}, AttentionShape{2, 2, 24}}) {
      CAPTURE(shape.head_dim);
      std::vector<float> best;
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        // The first positions are only written; then the last rows come in steps of several sizes.
        const auto last_rows = [&](uint32_t max_rows, uint32_t rows, Split split) {
          AttentionSteps steps(pack, shape, kPositions, std::max(max_rows, 512u));
          // Fewer rows than the bucket's may be split over tasks; which, does the bucket decide.
          for (uint32_t done = 0; done < kPositions - kLast; done += 512) {
            steps.step({{1, std::min(512u, kPositions - kLast - done)}}, {}, false);
          }
          std::vector<float> out;
          for (uint32_t done = 0; done < kLast; done += rows) {
            append(out, steps.step({{1, std::min(rows, kLast - done)}}, split));
          }
          if (best.empty()) {
            for (uint32_t r = 0; r < kLast; ++r) {
              const size_t width = out.size() / kLast;
              CHECK(largest_difference({out.begin() + r * width, out.begin() + (r + 1) * width},
                                       steps.exact(1, kPositions - kLast + r)) < 1e-6);
            }
            best = out;
          }
          return out;
        };
        const std::vector<float> prefill = last_rows(512, kLast, {});  // tiles too tall to be split
        if (target.name != "SCALAR") CHECK(same_bits(prefill, best));
        if (target.name == "SCALAR") {
          CHECK(largest_difference(prefill, {best.begin(), best.end()}) < 1e-6);
          continue;
        }
        CHECK(same_bits(prefill, last_rows(512, 1, {})));
        CHECK(same_bits(prefill, last_rows(512, 4, {3, 1})));
        CHECK(same_bits(prefill, last_rows(512, 8, {2, 5})));
      }
    }
  }

  TEST_CASE("gqa: sharp and flat distributions") {
    const CpuPack pack;
    for (const float deviation : {60.0f, 1e-3f}) {
      CAPTURE(deviation);
      AttentionSteps steps(pack, {4, 2, 32}, 320, 320, deviation);
      const std::vector<float> out = steps.step({{0, 320}});
      for (const uint32_t p : {0u, 63u, 64u, 255u, 256u, 319u}) {
        CHECK(largest_difference({out.begin() + p * 128, out.begin() + (p + 1) * 128},
                                 steps.exact(0, p)) < 1e-4);
      }
    }
  }

  TEST_CASE("gqa: what is not a number stays with the rows that see it") {
    const CpuPack pack;
    const AttentionShape shape{6, 2, 32};
    constexpr uint32_t kPositions = 300, kBad = 140, kWidth = 6 * 32;
    AttentionSteps clean(pack, shape, kPositions, 2 * kPositions);
    const std::vector<float> expected = clean.step({{0, kPositions}, {1, kPositions}});
    AttentionSteps spoilt(pack, shape, kPositions, 2 * kPositions);
    SlotValues& values = spoilt.values(0);
    for (size_t i = 0; i < 64; ++i) {
      values.k[kBad * 64 + i] = std::numeric_limits<float>::quiet_NaN();
      values.v[kBad * 64 + i] = std::numeric_limits<float>::infinity();
    }
    const std::vector<float> out = spoilt.step({{0, kPositions}, {1, kPositions}});
    const auto rows = [](const std::vector<float>& all, uint32_t first, uint32_t end) {
      return std::vector<float>(all.begin() + first * kWidth, all.begin() + end * kWidth);
    };
    CHECK(same_bits(rows(out, 0, kBad), rows(expected, 0, kBad)));
    CHECK(same_bits(rows(out, kPositions, 2 * kPositions),
                    rows(expected, kPositions, 2 * kPositions)));
    for (const float value : rows(out, kBad, kPositions)) CHECK(!std::isfinite(value));
  }

  TEST_CASE("gqa: pages are written where the layout says, values padded with zeros") {
    const CpuPack pack;
    ControlBlock block(small_limits());
    Share share;
    share.flags = kernels::kSequenceReset;
    share.reset_length = 60;
    share.ids.assign(8, 1);
    block.submit(1, {share}, {{0, 0, 2, 0}, {0, 1, 1, 0}});
    block.fetch(pack);
    constexpr uint32_t kHeads = 2, kDim = 5, kStride = 16;
    const uint64_t head_floats = kernels::gqa_head_floats(kDim);
    REQUIRE(head_floats == 64 * (kDim + kStride));
    std::vector<float> pages(3 * kHeads * head_floats, -1.0f);
    const std::vector<float> k = normal_values(8 * 11, 1), v = normal_values(8 * 12, 2);
    std::vector<uint32_t> arrivals(3 * kHeads, 77);
    kernels::GqaWriteParams params{};
    params.k = k.data();
    params.v = v.data();
    params.control = &block.control();
    params.rows = &block.control().step;
    params.pages = reinterpret_cast<unsigned char*>(pages.data());
    params.arrivals = arrivals.data();
    params.page_stride = kHeads * head_floats * sizeof(float);
    params.k_stride = 11;
    params.v_stride = 12;
    params.kv_heads = kHeads;
    params.head_dim = kDim;
    params.split_rows = 3;
    pack.run("gqa_write", params, 2);
    CHECK(arrivals == std::vector<uint32_t>(6, 0));
    std::vector<float> expected(pages.size(), -1.0f);
    for (uint32_t r = 0; r < 8; ++r) {
      const uint32_t page = r < 4 ? 2 : 1, place = (60 + r) % 64;
      for (uint32_t h = 0; h < kHeads; ++h) {
        float* head = expected.data() + (page * kHeads + h) * head_floats;
        for (uint32_t i = 0; i < kDim; ++i) head[i * 64 + place] = k[r * 11 + h * kDim + i];
        float* value = head + kDim * 64 + place * kStride;
        for (uint32_t i = 0; i < kStride; ++i)
          value[i] = i < kDim ? v[r * 12 + h * kDim + i] : 0.0f;
      }
    }
    CHECK(same_bits(pages, expected));
  }
}

}  // namespace atlas::test
