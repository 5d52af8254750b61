// Dense attention of every GPU pack in the emulator, by the plugin's own records: against float64,
// and bit for bit against itself however the rows come.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu_attention_steps.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;
using Part = GpuAttentionSteps::Part;

// Weights are rounded to bf16: within 2^-9 of themselves, so a sum of values is within 2^-8 of the
// largest value; sums in float32 add little.
constexpr double kTolerance = 4e-3 * 2;

/// Rows [first, end) of slot 1 in steps of `rows`; those before are only written.
std::vector<float> last_rows(GpuAttentionSteps& steps, uint32_t first, uint32_t end, uint32_t rows,
                             uint64_t seed = 0) {
  steps.fill(1, first);
  std::vector<float> out;
  for (uint32_t done = first; done < end; done += rows) {
    append(out, steps.step({{1, std::min(rows, end - done)}}, seed));
  }
  return out;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: gqa against float64, at odd lengths, for all head sizes") {
    for (const AttentionShape& shape : {AttentionShape{9, 3, 64},
                                        {4, 4, 16},
                                        {8, 1, 80},
                                        {3, 1, 128},
                                        {24, 2, 256},
                                        {20, 1, 144}}) {
      for (const char* platform : kGpuPlatforms) {
        for (const uint32_t max_rows : {1u, 64u}) {
          CAPTURE(platform);
          CAPTURE(shape.head_dim);
          CAPTURE(max_rows);
          GpuAttentionSteps steps(platform, shape, {576, max_rows, 2});
          const size_t width = size_t{shape.heads} * shape.head_dim;
          for (const uint32_t position : {0u, 254u, 521u}) {
            steps.fill(1, position);
            const uint32_t rows = std::min(max_rows, 3u);
            const std::vector<float> out = steps.step({{1, rows}}, position);
            for (uint32_t r = 0; r < rows; ++r) {
              CHECK(largest_difference(rows_of(out, width, r, r + 1),
                                       steps.exact(1, position + r)) < kTolerance);
            }
          }
        }
      }
    }
  }

  TEST_CASE("gpu: gqa gives a row the same bits in decode, verify and prefill, in any order") {
    constexpr uint32_t kFirst = 509, kEnd = 515;  // across the end of a block
    for (const AttentionShape& shape : {AttentionShape{9, 3, 64}, {4, 1, 128}, {12, 1, 256}}) {
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        CAPTURE(shape.head_dim);
        const auto rows_in = [&](uint32_t max_rows, uint32_t rows, uint32_t sequences,
                                 uint64_t seed) {
          GpuAttentionSteps steps(platform, shape, {576, max_rows, sequences});
          return last_rows(steps, kFirst, kEnd, rows, seed);
        };
        const std::vector<float> prefill = rows_in(512, 6, 1, 0);
        CHECK(same_bits(rows_in(1, 1, 1, 0), prefill));
        CHECK(same_bits(rows_in(8, 8, 8, 5), prefill));
        CHECK(same_bits(rows_in(8, 3, 8, 6), prefill));
        CHECK(same_bits(rows_in(32, 1, 32, 7), prefill));
      }
    }
  }

  TEST_CASE("gpu: gqa gives a sequence the same bits alone, in any chunks and among others") {
    const AttentionShape shape{6, 2, 32};
    constexpr size_t kWidth = 6 * 32;
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      // Steps of several sequences, some of them long: the rows of a slot come in four chunks.
      const std::vector<std::vector<Part>> schedule = {{{0, 3}, {1, 40}, {2, 1}},
                                                       {{2, 70}, {0, 1}},
                                                       {{1, 1}, {0, 7}, {5, 64}, {2, 130}},
                                                       {},
                                                       {{5, 1}, {2, 120}, {1, 1}, {0, 50}}};
      for (const uint64_t seed : {0, 3}) {
        GpuAttentionSteps together(platform, shape, {384, 272});
        std::map<uint32_t, std::vector<float>> rows;
        std::map<uint32_t, uint32_t> lengths;
        for (const std::vector<Part>& parts : schedule) {
          const std::vector<float> out = together.step(parts, seed);
          size_t at = 0;
          for (const Part& part : parts) {
            append(rows[part.slot], rows_of(out, kWidth, at, at + part.rows));
            lengths[part.slot] += part.rows;
            at += part.rows;
          }
        }
        for (const auto& [slot, length] : lengths) {
          CAPTURE(slot);
          GpuAttentionSteps alone(platform, shape, {384, 384, 1});
          CHECK(same_bits(rows[slot], alone.step({{slot, length}})));
        }
      }
    }
  }

  TEST_CASE("gpu: gqa takes rows back that were not accepted") {
    const AttentionShape shape{4, 2, 64};
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      GpuAttentionSteps plain(platform, shape, {128, 8}), drafted(platform, shape, {128, 8});
      plain.fill(1, 61);
      drafted.fill(1, 61);
      // The rejected rows held something else: another slot's values at these positions.
      std::swap(drafted.values(1), drafted.values(2));
      drafted.step({{1, 8}});
      std::swap(drafted.values(1), drafted.values(2));
      drafted.drop(1, 8);
      for (int i = 0; i < 4; ++i) CHECK(same_bits(drafted.step({{1, 2}}), plain.step({{1, 2}})));
    }
  }

  TEST_CASE("gpu: sharp and flat distributions of gqa") {
    for (const char* platform : kGpuPlatforms) {
      for (const float deviation : {60.0f, 1e-3f}) {
        CAPTURE(platform);
        CAPTURE(deviation);
        GpuAttentionSteps steps(platform, {4, 2, 32}, {320, 320, 1}, deviation);
        const std::vector<float> out = steps.step({{0, 320}});
        for (const uint32_t p : {0u, 63u, 64u, 255u, 256u, 319u}) {
          CHECK(largest_difference(rows_of(out, 128, p, p + 1), steps.exact(0, p)) < kTolerance);
        }
      }
    }
  }

  TEST_CASE("gpu: what is not a number stays with the gqa rows and heads that see it") {
    const AttentionShape shape{6, 2, 32};
    constexpr uint32_t kPositions = 300, kKey = 140, kValue = 150, kHead = 1;
    constexpr size_t kWidth = 6 * 32;
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      GpuAttentionSteps clean(platform, shape, {320, 2 * kPositions});
      const std::vector<float> expected = clean.step({{0, kPositions}, {1, kPositions}});
      GpuAttentionSteps spoilt(platform, shape, {320, 2 * kPositions});
      SlotValues& values = spoilt.values(0);
      values.k[(kKey * 2 + kHead) * 32 + 5] = std::nanf("");
      values.v[(kValue * 2 + 0) * 32 + 31] = HUGE_VALF;
      const std::vector<float> out = spoilt.step({{0, kPositions}, {1, kPositions}});
      CHECK(same_bits(rows_of(out, kWidth, kPositions, 2 * kPositions),
                      rows_of(expected, kWidth, kPositions, 2 * kPositions)));
      for (uint32_t r = 0; r < kPositions; ++r) {
        for (uint32_t i = 0; i < kWidth; ++i) {
          const bool sees = r >= (i / 32 / 3 == kHead ? kKey : kValue);
          const float value = out[r * kWidth + i];
          if (sees ? std::isfinite(value) : value != expected[r * kWidth + i]) {
            FAIL("row " << r << ", element " << i << ": " << value);
          }
        }
      }
    }
  }

  TEST_CASE("gpu: gqa is made of matrix instructions, and reads each key and value once") {
    if (!gpu_counts()) return;
    constexpr uint32_t kPosition = 1023;
    for (const AttentionShape& shape : {AttentionShape{9, 3, 64}, {12, 1, 256}}) {
      for (const char* platform : kGpuPlatforms) {
        for (const uint32_t rows : {1u, shape.head_dim == 64 ? 7u : 2u}) {
          CAPTURE(platform);
          CAPTURE(rows);
          GpuAttentionSteps decode(platform, shape, {2048, rows, 1});
          decode.fill(1, kPosition);
          decode.step({{1, rows}});
          const AttentionForm& form =
              gqa_form(shape.head_dim, attention_is_tall(shape.heads / shape.kv_heads, rows, 1));
          const simt::Report& report = decode.report(form.kernel);
          const bool is_wmma = std::string(platform) == "strix-hip";
          CHECK(report.matrix_count(is_wmma ? simt::Matrix::kWmmaBf16 : simt::Matrix::kMmaBf16) >
                0);
          const double bytes = double(kPosition + rows) * shape.kv_heads * shape.head_dim * 2 * 2;
          CHECK(report.of("pages").fetched_bytes <= 1.1 * bytes);
        }
      }
    }
  }

  TEST_CASE("gpu: gqa's plans divide long contexts, and stay within the memory of sums") {
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      AtlasAttentionProblem problem = attention_problem({24, 2, 256}, 1, 4096);
      problem.platform = platform;
      problem.max_sequences = 64;
      AtlasAttentionNeeds needs{};
      needs.struct_size = sizeof(needs);
      const auto ask = [&] {
        AtlasError error{sizeof(AtlasError), {}};
        const AtlasCode code = gqa_plugin().needs(&problem, &needs, &error);
        return code == ATLAS_OK ? std::string() : std::string(error.message);
      };
      REQUIRE(ask() == "");
      CHECK(needs.page_tokens == 64);
      CHECK(needs.bytes_per_page == 2 * 2 * 64 * 256 * 2);
      CHECK(std::string(needs.contract) == "gqa_bf16_b256");
      CHECK(std::string(needs.state_layout) == "gqa bf16 k8 v4 heads 2 dim 256");
      CHECK(needs.workspace_bytes == 24 * 1024 * (256 + 4) * 4);
      problem.max_rows = 64;  // sums of 64 rows would be 1.6 GB, and there is work without
      REQUIRE(ask() == "");
      CHECK(needs.workspace_bytes == 0);
      problem.head_dim = 72;
      CHECK(ask().find("head_dim 72 on " + std::string(platform)) != std::string::npos);
      problem.head_dim = 272;
      CHECK(ask().find("multiples of 16 up to 256") != std::string::npos);
    }
  }
}

}  // namespace atlas::test
