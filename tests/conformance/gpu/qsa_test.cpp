// Sparse attention of every GPU pack in the emulator, by the plugin's own records: its choice of
// blocks and its results against float64, and bit for bit against itself and gqa.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/gpu_sparse_steps.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;
using Part = GpuSparseSteps::Part;

// Weights are rounded to bf16, as in gqa.
constexpr double kTolerance = 4e-3 * 2;

const SparseShape kShapes[] = {
    {4, 2, 64, 4, 64, 16, 4, 16},   // flash-mini's heads
    {12, 1, 80, 2, 24, 8, 8, 32},   // a group of twelve; blocks of eight
    {34, 2, 16, 8, 48, 0, 16, 32},  // groups larger than a tile
};

/// The matrix instruction of a platform's attention.
simt::Matrix platform_matrix(const std::string& platform) {
  return platform == "strix-hip" ? simt::Matrix::kWmmaBf16 : simt::Matrix::kMmaBf16;
}

/// Positions of slot 1 up to `end`, in steps of `sizes` in turn.
std::vector<float> in_steps(GpuSparseSteps& steps, uint32_t end, const std::vector<uint32_t>& sizes,
                            uint64_t seed = 0) {
  std::vector<float> out;
  for (size_t i = 0; steps.control().length(1) < end; ++i) {
    const uint32_t left = end - steps.control().length(1);
    append(out, steps.step({{1, std::min(sizes[i % sizes.size()], left)}}, seed));
  }
  return out;
}

/// What qsa_select lists for scores, on a platform.
std::vector<uint32_t> selected(const std::string& platform, const std::vector<float>& scores,
                               uint32_t chosen, uint64_t seed) {
  GpuMachine machine(platform);
  const auto count = static_cast<uint32_t>(scores.size());
  std::vector<float> padded = scores;
  while (padded.size() % 4 != 0) padded.push_back(std::numeric_limits<float>::infinity());
  RowInput row{};
  row.index = 4 * count + 1;
  RowSpan span{};
  span.row_count = 1;
  span.index = row.index;
  StepControl control{};
  control.limits.max_pages = row.index / 64 + 1;
  control.step = {const_cast<RowInput*>(machine.input("rows", std::vector{row})),
                  const_cast<RowSpan*>(machine.input("spans", std::vector{span})), 1, 1};
  const StepControl* at = machine.input("control", std::vector{control});
  QsaGpuSelectParams params{};
  params.control = at;
  params.rows = &at->step;
  params.scores = machine.in_out("scores", padded);
  params.lists = machine.output<uint32_t>("lists", chosen);
  params.score_stride = padded.size();
  params.ratio = 4;
  params.budget_blocks = chosen;
  params.row_limit = 2;
  const simt::Report report =
      machine.run("qsa_select", params, kQsaGpuSelectParamsDigest,
                  {.shape = {2, 1, 1, kQsaSelectThreads, kQsaSelectSharedBytes}, .seed = seed});
  INFO(report.text());
  REQUIRE(report.ok());
  return machine.contents(params.lists, ~0u);
}

/// The same by a stable sort.
std::vector<uint32_t> sorted_choice(const std::vector<float>& scores, uint32_t chosen) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  order.resize(chosen);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: qsa_select lists the largest scores, ties to the lower block, ascending") {
    std::mt19937 random(7);
    std::vector<std::vector<float>> cases;
    cases.push_back(std::vector<float>(700, 0.0f));
    cases.push_back(std::vector<float>(515, 3.25f));
    std::vector<float> ramp(6001);
    for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<float>(i * 7919 % 6001);
    cases.push_back(ramp);
    std::vector<float> sparse(5000, 0.0f);  // fewer above 0 than are chosen
    for (size_t i = 0; i < 300; ++i) sparse[i * 16 + 3] = 1.0f + static_cast<float>(i % 7);
    cases.push_back(sparse);
    std::vector<float> near_ties(9000);  // neighbours in the last place, and few values
    for (float& x : near_ties) x = std::nextafter(2.0f, 2.0f + float(random() % 3));
    cases.push_back(near_ties);
    std::vector<float> wide(4099);
    for (float& x : wide) x = std::exp2(static_cast<float>(random() % 250) - 140.0f);
    wide[17] = std::numeric_limits<float>::infinity();
    cases.push_back(wide);
    for (const char* platform : kGpuPlatforms) {
      for (size_t i = 0; i < cases.size(); ++i) {
        CAPTURE(platform);
        CAPTURE(i);
        for (const uint32_t chosen : {1u, 64u, 512u}) {
          CHECK(selected(platform, cases[i], chosen, i) == sorted_choice(cases[i], chosen));
        }
      }
    }
  }

  TEST_CASE("gpu: qsa_select chooses among the blocks of 262,144 positions") {
    std::vector<float> scores = normal_values(65536, 5);
    for (float& x : scores) x = std::max(x, 0.0f);
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      CHECK(selected(platform, scores, 512, 1) == sorted_choice(scores, 512));
    }
  }

  TEST_CASE("gpu: qsa's index keys, choice and attention against float64") {
    constexpr uint32_t kPositions = 130;
    for (const SparseShape& shape : kShapes) {
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        CAPTURE(shape.ratio);
        GpuSparseSteps steps(platform, shape, {192, kPositions, 2});
        const std::vector<float> out = steps.step({{1, kPositions}});
        const std::vector<double> keys = steps.stored_keys(1, kPositions / shape.ratio);
        const std::vector<double> exact = steps.exact_keys(1, kPositions / shape.ratio);
        for (size_t i = 0; i < keys.size(); ++i) {
          CHECK(std::fabs(keys[i] - exact[i]) <= std::fabs(exact[i]) * 0x1p-8 + 1e-6);
        }
        uint32_t left_out = 0;
        double worst = 0;
        for (uint32_t p = 0; p < kPositions; p += p < 40 ? 1 : 7) {
          const std::vector<uint32_t> chosen = steps.chosen(1, p, keys);
          if (chosen.empty()) {
            ++left_out;
            continue;
          }
          worst = std::max(worst, largest_difference(rows_of(out, steps.width(), p, p + 1),
                                                     steps.exact(1, p, chosen)));
        }
        CHECK(worst < kTolerance);
        CHECK(left_out <= 3);
      }
    }
  }

  TEST_CASE("gpu: qsa gives a row the same bits in decode, verify and prefill, in any order") {
    constexpr uint32_t kPositions = 75;
    for (const SparseShape& shape : kShapes) {
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        CAPTURE(shape.ratio);
        GpuSparseSteps whole(platform, shape, {128, kPositions, 1});
        const std::vector<float> expected = whole.step({{1, kPositions}});
        GpuSparseSteps chunks(platform, shape, {128, 64, 4});
        CHECK(same_bits(in_steps(chunks, kPositions, {23, 1, 40, 2, 3, 8}, 3), expected));
        GpuSparseSteps decode(platform, shape, {128, 8, 8});
        decode.fill(1, 63);
        const std::vector<float> last = rows_of(expected, whole.width(), 63, kPositions);
        CHECK(same_bits(in_steps(decode, kPositions, {1, 5, 6}, 4), last));
      }
    }
  }

  TEST_CASE("gpu: a qsa row that may attend to everything has the bits of gqa") {
    for (SparseShape shape :
         {SparseShape{4, 2, 64, 4, 16, 8, 4, 280}, {12, 1, 256, 1, 16, 0, 4, 280}}) {
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        GpuSparseSteps sparse(platform, shape, {320, 64, 1});
        GpuAttentionSteps dense(platform, {shape.heads, shape.kv_heads, shape.head_dim},
                                {320, 64, 1});
        const SparseText& text = sparse.text(1);
        dense.values(1).q = text.q;
        dense.values(1).k = text.k;
        dense.values(1).v = text.v;
        dense.fill(1, 276);
        sparse.fill(1, 276);
        const std::vector<float> expected = dense.step({{1, 12}});
        const std::vector<float> out = sparse.step({{1, 12}});
        // Position 283 is the first that has to choose, and leaves a block out.
        const size_t width = sparse.width();
        CHECK(same_bits(rows_of(out, width, 0, 7), rows_of(expected, width, 0, 7)));
        CHECK(!same_bits(rows_of(out, width, 7, 8), rows_of(expected, width, 7, 8)));
        GpuSparseSteps many(platform, shape, {320, 1024, 1});
        many.fill(1, 276);
        CHECK(same_bits(many.step({{1, 12}}), out));
      }
    }
  }

  TEST_CASE("gpu: qsa lists of several blocks of places, split over tasks or not") {
    const SparseShape shape{12, 1, 256, 2, 32, 8, 4, 516};
    constexpr uint32_t kFirst = 640, kEnd = 646;
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      GpuSparseSteps whole(platform, shape, {704, 512, 1});  // no room to split so many rows
      whole.fill(1, kFirst);
      const std::vector<float> expected = whole.step({{1, kEnd - kFirst}});
      GpuSparseSteps few(platform, shape, {704, 4, 4});
      few.fill(1, kFirst);
      CHECK(same_bits(in_steps(few, kEnd, {1, 4, 3}, 9), expected));
      // A bucket of many rows, whose tiles walk in step: those of another sequence see fewer
      // blocks.
      GpuSparseSteps many(platform, shape, {704, 1024, 2});
      many.fill(1, kFirst);
      const std::vector<float> both = many.step({{0, 11}, {1, kEnd - kFirst}});
      if (gpu_counts()) {
        CHECK(many.report("qsa_attend_many_256").matrix_count(platform_matrix(platform)) > 0);
      }
      CHECK(same_bits(rows_of(both, whole.width(), 11, 11 + kEnd - kFirst), expected));
      GpuSparseSteps other(platform, shape, {704, 16, 1});
      CHECK(same_bits(rows_of(both, whole.width(), 0, 11), other.step({{0, 11}})));
      const std::vector<double> keys = few.stored_keys(1, kEnd / 4);
      uint32_t compared = 0;
      for (uint32_t p = kFirst; p < kEnd; ++p) {
        const std::vector<uint32_t> chosen = few.chosen(1, p, keys);
        if (chosen.empty()) continue;
        ++compared;
        CHECK(largest_difference(rows_of(expected, whole.width(), p - kFirst, p - kFirst + 1),
                                 few.exact(1, p, chosen)) < kTolerance);
      }
      CHECK(compared > 3);
    }
  }

  TEST_CASE("gpu: qsa rows that were not accepted leave no trace") {
    const SparseShape& shape = kShapes[0];
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      GpuSparseSteps plain(platform, shape, {128, 8, 1}), drafted(platform, shape, {128, 8, 1});
      for (const uint32_t accepted : {3u, 1u, 8u, 5u, 2u, 7u, 1u, 1u, 6u}) {
        const std::vector<float> expected = plain.step({{1, accepted}});
        drafted.step({{1, 8}}, 0, true, 2);  // another text's rows, all of which are rejected
        drafted.control().drop(1, 8);
        CHECK(same_bits(drafted.step({{1, accepted}}), expected));
      }
    }
  }

  TEST_CASE("gpu: a qsa sequence goes on from an anchor's position in another slot") {
    const SparseShape& shape = kShapes[1];
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      GpuSparseSteps steps(platform, shape, {128, 64, 2});
      const std::vector<float> expected = in_steps(steps, 90, {11, 30});
      steps.step({{5, 45}}, 0, false);  // the slot's ring holds another text
      steps.control().go_on(5, 1, 64);
      std::vector<float> rest;
      for (uint32_t at = 64; at < 90; at += 13) append(rest, steps.step({{5, 13}}, 0, true, 1));
      CHECK(same_bits(rest, rows_of(expected, steps.width(), 64, 90)));
    }
  }

  TEST_CASE("gpu: ragged qsa steps give every sequence the bits that it has alone") {
    const SparseShape& shape = kShapes[0];
    const std::vector<std::vector<Part>> schedule = {{{3, 40}, {5, 1}, {0, 20}},
                                                     {{0, 1}, {3, 8}, {5, 31}, {7, 25}},
                                                     {},
                                                     {{7, 1}, {5, 8}, {3, 1}, {0, 8}},
                                                     {{3, 1}, {5, 1}, {7, 1}}};
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      GpuSparseSteps together(platform, shape, {128, 96, 8});
      std::map<uint32_t, std::vector<float>> rows;
      for (const std::vector<Part>& parts : schedule) {
        const std::vector<float> out = together.step(parts, 2);
        size_t at = 0;
        for (const Part& part : parts) {
          append(rows[part.slot], rows_of(out, together.width(), at, at + part.rows));
          at += part.rows;
        }
      }
      for (const auto& [slot, out] : rows) {
        CAPTURE(slot);
        GpuSparseSteps alone(platform, shape, {128, 128, 1});
        CHECK(same_bits(out, alone.step({{slot, together.control().length(slot)}})));
      }
    }
  }

  TEST_CASE("gpu: what is not a number stays with its qsa sequence and its later rows") {
    const SparseShape& shape = kShapes[0];
    constexpr uint32_t kPositions = 70, kBad = 64;
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      GpuSparseSteps clean(platform, shape, {128, 140, 2}), spoilt(platform, shape, {128, 140, 2});
      const std::vector<float> expected = clean.step({{0, kPositions}, {1, kPositions}});
      SparseText& text = spoilt.spoil_text(0);
      for (size_t i = 0; i < 64; ++i) text.index_k[kBad * 64 + i] = NAN;
      for (size_t i = 0; i < 128; ++i) text.v[kBad * 128 + i] = NAN;
      const std::vector<float> out = spoilt.step({{0, kPositions}, {1, kPositions}});
      const size_t width = spoilt.width();
      CHECK(same_bits(rows_of(out, width, 0, kBad), rows_of(expected, width, 0, kBad)));
      CHECK(same_bits(rows_of(out, width, kPositions, 2 * kPositions),
                      rows_of(expected, width, kPositions, 2 * kPositions)));
      CHECK(std::isnan(out[kBad * width]));  // its own row sees it in the tail
    }
  }

  TEST_CASE("gpu: qsa reads each index key once, and of keys and values what is chosen") {
    if (!gpu_counts()) return;
    const SparseShape shape{12, 1, 256, 4, 128, 64, 4, 256};
    constexpr uint32_t kPosition = 1535;
    for (const char* platform : kGpuPlatforms) {
      for (const uint32_t rows : {1u, 8u}) {
        CAPTURE(platform);
        CAPTURE(rows);
        GpuSparseSteps steps(platform, shape, {1600, rows, 1});
        steps.fill(1, kPosition);
        steps.step({{1, rows}});
        const double index_bytes = double((kPosition + rows) / 4) * 128 * 2;
        CHECK(steps.report("qsa_score").of("pages").fetched_bytes <= 1.1 * index_bytes);
        const double bytes = double(rows) * (256 + 3) * 256 * 2 * 2;
        // The emulator's lanes come one after another, and with WMMA four lanes share a sector.
        const auto kind = platform_matrix(platform);
        const bool is_wmma = kind == simt::Matrix::kWmmaBf16;
        CHECK(steps.report("qsa_attend_256").of("pages").fetched_bytes <=
              (is_wmma ? 1.2 : 1.1) * bytes);
        CHECK(steps.report("qsa_score").matrix_count(kind) > 0);
        CHECK(steps.report("qsa_attend_256").matrix_count(kind) > 0);
      }
    }
  }

  TEST_CASE("gpu: qsa's plans say what they need, and refuse what no kernel serves") {
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      SparseProblem p;
      fill_sparse_problem(p, {24, 2, 256, 4, 128, 64, 4, 2048}, 4096, 4096);
      p.problem.platform = platform;
      AtlasAttentionNeeds needs{};
      needs.struct_size = sizeof(needs);
      const auto ask = [&] {
        AtlasError error{sizeof(AtlasError), {}};
        const AtlasCode code = sparse_plugin("qsa").needs(&p.problem, &needs, &error);
        return code == ATLAS_OK ? std::string() : std::string(error.message);
      };
      const auto refused = [&](const std::string& text) {
        return ask().find(text) != std::string::npos;
      };
      REQUIRE(ask() == "");
      CHECK(needs.bytes_per_page == 2 * 2 * 64 * 256 * 2 + 16 * 128 * 2);
      CHECK(needs.bytes_per_slot == 16 * 128 * 4);
      CHECK(needs.anchor_tokens == 64);
      CHECK(std::string(needs.contract) == "qsa_bf16_b256");
      CHECK(std::string(needs.state_layout) == "qsa bf16 k8 v4 2x256 index 128/4");
      // Lists of 4,096 rows, and scores of 512: eight records of each kind.
      CHECK(needs.workspace_bytes == 4096 * 512 * 4 + (128u << 20));
      p.problem.page_stride = needs.bytes_per_page;
      std::vector<PlannedRecord> records;
      AtlasRecordSink sink{sizeof(sink), 0, &records, collect_record};
      REQUIRE(sparse_plugin("qsa").plan(&p.problem, &sink, nullptr) == ATLAS_OK);
      CHECK(records.size() == 1 + 2 * 8 + 1);
      p.problem.page_stride += 8;
      CHECK(sparse_plugin("qsa").plan(&p.problem, &sink, nullptr) == ATLAS_INVALID_ARGUMENT);
      p.indexer.ratio = 2;
      CHECK(refused("ratio 2 on " + std::string(platform)));
      p.indexer.ratio = 4;
      p.indexer.heads = 3;
      CHECK(refused("indexer heads 3 on"));
      p.indexer.heads = 4;
      p.indexer.head_dim = 272;
      CHECK(refused("indexer head_dim 272 on"));
      p.indexer.head_dim = 128;
      p.problem.head_dim = 40;
      CHECK(refused("head_dim 40 on"));
    }
  }
}

}  // namespace atlas::test
