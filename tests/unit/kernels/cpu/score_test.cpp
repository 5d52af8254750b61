// score: log-probabilities, ranks and alternatives against float64 and a full sort.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/control_block.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double log_sum(const float* x, size_t n) {
  const double largest = *std::max_element(x, x + n);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

/// Ids by descending logit, lower ids first.
std::vector<uint32_t> order(const float* x, uint32_t n) {
  std::vector<uint32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0u);
  std::stable_sort(ids.begin(), ids.end(), [x](uint32_t a, uint32_t b) { return x[a] > x[b]; });
  return ids;
}

/// Scores one row; `target` as the host gave it.
RowScore score_row(const CpuPack& pack, const std::vector<float>& logits, uint32_t target,
                   uint32_t top, uint32_t* error = nullptr) {
  ControlBlock block(small_limits(static_cast<uint32_t>(logits.size())));
  Share share;
  share.flags = kSequenceReset;
  share.ids = {0};
  share.logit_count = 1;
  share.score = 1;
  share.score_top = top;
  share.targets = {target};
  block.submit(1, {share});
  block.fetch(pack);
  REQUIRE(block.control().error == 0);
  pack.run("score", ScoreParams{&block.control(), logits.data()}, 32);
  block.commit(pack);
  if (error != nullptr) *error = block.sequence_result(1, 0).error;
  return block.row_score(1, 0);
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("score: log-probability, rank and alternatives of any vocabulary") {
    const CpuPack pack;
    CHECK(pack.params_digest("score") == kScoreParamsDigest);
    for (const uint32_t vocab : {1u, 2u, 15u, 17u, 64u, 1003u, 49'152u, 262'144u}) {
      for (const bool ties : {false, true}) {
        CAPTURE(vocab);
        CAPTURE(ties);
        std::vector<float> logits = normal_values(vocab, vocab + ties, 3.0f);
        if (ties) {
          for (float& logit : logits) logit = std::round(logit);
        }
        const double total = log_sum(logits.data(), vocab);
        const std::vector<uint32_t> ids = order(logits.data(), vocab);
        for (const uint32_t target : {0u, vocab / 2, vocab - 1, ids[0], ids[vocab / 3]}) {
          CAPTURE(target);
          const uint32_t top = std::min(target % 21 + 1, 20u);
          RowScore best{};
          for (const CpuTarget& machine : cpu_targets()) {
            CAPTURE(machine.name);
            const ForcedTarget forced(machine);
            const RowScore score = score_row(pack, logits, target, top);
            CHECK(score.target == target);
            CHECK(std::fabs(score.target_logprob - (logits[target] - total)) < 2e-6);
            const auto place = std::find(ids.begin(), ids.end(), target) - ids.begin();
            CHECK(score.target_rank == static_cast<uint32_t>(place) + 1);
            REQUIRE(score.top_count == std::min(top, vocab));
            for (uint32_t i = 0; i < score.top_count; ++i) {
              CHECK(score.top_ids[i] == ids[i]);
              CHECK(std::fabs(score.top_logprobs[i] - (logits[ids[i]] - total)) < 2e-6);
            }
            if (best.top_count == 0) best = score;
            if (machine.name != "SCALAR") CHECK(std::memcmp(&best, &score, sizeof(score)) == 0);
          }
        }
      }
    }
  }

  TEST_CASE("score: the sampled id is scored where no target is given, others stay untouched") {
    const CpuPack pack;
    ControlBlock block(small_limits(40));
    Share prompt;  // echo: all rows have targets but the last, which samples
    prompt.slot = 1;
    prompt.flags = kSequenceReset | kSequenceSample;
    prompt.ids = {3, 4, 5};
    prompt.logit_count = 3;
    prompt.targets = {4, 5};
    prompt.score = 1;
    prompt.score_top = 2;
    Share silent;
    silent.slot = 2;
    silent.flags = kSequenceReset | kSequenceSample;
    silent.ids = {6};
    silent.logit_count = 1;
    Share unsampled;
    unsampled.slot = 3;
    unsampled.flags = kSequenceReset;
    unsampled.ids = {7, 8};
    unsampled.logit_count = 1;
    unsampled.score = 1;
    block.submit(1, {prompt, silent, unsampled});
    block.fetch(pack);
    const std::vector<float> logits = normal_values(5 * 40, 8);
    std::vector<float> scratch(8 * 40);
    block.control().scores[3].target = 777;
    pack.run("sample", SampleParams{&block.control(), logits.data(), scratch.data()}, 8);
    pack.run("score", ScoreParams{&block.control(), logits.data()}, 32, {3, 1});
    block.commit(pack);
    CHECK(block.row_score(1, 0).target == 4);
    CHECK(block.row_score(1, 1).target == 5);
    CHECK(block.row_score(1, 2).target == sampled_token(block.sequence_result(1, 0)));
    CHECK(block.row_score(1, 2).target_rank == 1);  // greedy
    CHECK(block.row_score(1, 2).top_ids[0] == block.row_score(1, 2).target);
    CHECK(block.control().scores[3].target == 777);
    CHECK(block.row_score(1, 3).target == 0);
    CHECK(block.row_score(1, 4).target == kNoToken);
    CHECK(block.row_score(1, 4).target_rank == 0);
    CHECK(block.row_score(1, 4).top_count == 0);
  }

  TEST_CASE("score: masked logits have -infinity, and what is not finite is an error") {
    const CpuPack pack;
    std::vector<float> logits(100, -kInfinity);
    logits[7] = 2.0f;
    logits[70] = 2.0f;
    uint32_t error = 9;
    RowScore score = score_row(pack, logits, 50, 4, &error);
    CHECK(error == 0);
    CHECK(score.target_logprob == -kInfinity);
    CHECK(score.target_rank == 2 + 50);  // both finite ones, and 49 equal ones of lower ids
    CHECK(score.top_ids[0] == 7);
    CHECK(score.top_ids[1] == 70);
    CHECK(score.top_ids[2] == 0);
    CHECK(score.top_logprobs[0] == doctest::Approx(-std::log(2.0)));
    CHECK(score.top_logprobs[2] == -kInfinity);
    for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (const uint32_t place : {0u, 64u, 99u}) {
        std::vector<float> spoilt = normal_values(100, 1);
        spoilt[place] = bad;
        score = score_row(pack, spoilt, 3, 5, &error);
        CHECK(error == kErrorNotFinite);
        CHECK(score.target == 3);
        CHECK(score.target_logprob == -kInfinity);
        CHECK(score.target_rank == 0);
        CHECK(score.top_count == 0);
      }
    }
    score_row(pack, std::vector<float>(100, -kInfinity), 3, 5, &error);
    CHECK(error == kErrorNotFinite);
  }
}

}  // namespace atlas::test
