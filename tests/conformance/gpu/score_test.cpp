// score of every GPU pack: the log-probabilities, ranks and alternatives of the CPU pack.
#include <algorithm>
#include <limits>
#include <vector>

#include "tests/support/gpu_control.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Scores rows of logits in one step: two rows a sequence.
struct ScoreRun {
  ScoreRun(const std::string& of_platform, uint32_t tokens, uint32_t sequences)
      : vocab(tokens),
        shares(sequences),
        logits(size_t{2} * sequences * tokens),
        platform(of_platform) {
    for (uint32_t s = 0; s < sequences; ++s) {
      shares[s].slot = s;
      shares[s].flags = kSequenceReset | kSequenceSample;
      shares[s].ids = {0, 0, 0};
      shares[s].logit_count = 2;
      shares[s].score = 1;
      shares[s].score_top = kMaxTopLogprobs;
    }
  }
  float* row(uint32_t j) { return logits.data() + size_t{j} * vocab; }
  void fill(uint32_t j, float deviation) {
    const auto values = normal_values(vocab, j + vocab, deviation);
    std::copy(values.begin(), values.end(), row(j));
  }

  /// `sampled`: the ids that `sample` drew, kNoToken for none.
  void check(uint64_t seed, const std::vector<uint32_t>& sampled = {}) {
    ControlLimits limits = small_limits(vocab);
    limits.max_slots = 8;
    ControlBlock block(limits);
    block.submit(1, shares);
    block.fetch(CpuPack());
    REQUIRE(block.control().error == 0);
    std::copy(sampled.begin(), sampled.end(), block.control().sampled);
    GpuTwin twin(platform);
    GpuControl gpu(twin.machine(), block);
    const auto x = twin.input("logits", logits);
    const uint32_t rows = block.control().logit_count + 1;
    twin.run<ScoreParams>(
        "score", kScoreParamsDigest, rows, rows,
        [&](bool on_gpu) {
          return ScoreParams{on_gpu ? gpu.control() : &block.control(), x.at(on_gpu)};
        },
        seed);
    CHECK(gpu.differences() == "");
  }

  uint32_t vocab;
  std::vector<Share> shares;
  std::vector<float> logits;
  std::string platform;
};

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: score has the CPU's log-probabilities, ranks and alternatives") {
    if (!cpu_has_fma()) return;
    for (const char* platform : kGpuPlatforms) {
      for (const uint32_t vocab : {1u, 2u, 17u, 1003u, 5000u}) {
        CAPTURE(platform);
        CAPTURE(vocab);
        ScoreRun run(platform, vocab, 3);
        for (uint32_t j = 0; j < 6; ++j) {
          run.fill(j, j % 2 == 0 ? 3.0f : 0.2f);
          // Ties, zeros of both signs, and masked logits.
          for (uint32_t i = 0; i < vocab; ++i) {
            float& x = run.row(j)[i];
            if (j == 2) x = std::round(x);
            if (j == 3) x = i % 2 == 0 ? 0.0f : -0.0f;
            if (j == 4 && i % 3 != 0) x = -kInfinity;
          }
        }
        run.shares[0].targets = {vocab / 2, vocab - 1};
        run.shares[1].targets = {0};
        run.shares[2].score_top = 3;
        run.check(vocab % 3, {kNoToken, kNoToken, kNoToken, vocab / 3, kNoToken, vocab / 4});
      }
    }
  }

  TEST_CASE("gpu: score of a large vocabulary, and of more ties than can be listed") {
    if (!cpu_has_fma()) return;
    for (const char* platform : kGpuPlatforms) {
      ScoreRun run(platform, 70'000, 1);
      run.fill(0, 2.0f);
      std::fill_n(run.row(1), run.vocab, 1.5f);
      run.row(1)[40'000] = 2.0f;
      run.shares[0].targets = {123, 60'000};
      run.check(1);
    }
    ScoreRun run("h200", 248'320, 1);
    run.fill(0, 3.0f);
    run.fill(1, 0.5f);
    run.shares[0].targets = {200'000};
    run.check(0);
  }

  TEST_CASE("gpu: score leaves others alone, and what is not finite is an error") {
    for (const char* platform : kGpuPlatforms) {
      ScoreRun run(platform, 300, 4);
      for (uint32_t j = 0; j < 8; ++j) run.fill(j, 1.0f);
      run.row(0)[299] = std::numeric_limits<float>::quiet_NaN();
      run.row(3)[7] = kInfinity;
      std::fill_n(run.row(5), 300, -kInfinity);
      run.shares[1].score_top = 0;
      run.shares[3].score = 0;
      run.shares[0].targets = {5, 6};
      run.check(2);
    }
  }
}

}  // namespace atlas::test
