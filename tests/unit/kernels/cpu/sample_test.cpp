// sample: every stage against a slow reference, distributions against softmax, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "kernels/common/philox.h"
#include "tests/support/control_block.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A sequence to sample, and the logits of its last row.
struct Draw {
  SamplingInput sampling = neutral_sampling();
  std::vector<float> logits;
  std::vector<LogitBias> biases;
  std::vector<CountUpdate> counts;
  uint32_t position = 0;
};

struct Outcome {
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> errors;
};

/// Samples all draws, eight sequences a step.
Outcome sample_all(const CpuPack& pack, const std::vector<Draw>& draws, Split split = {}) {
  const auto vocab = static_cast<uint32_t>(draws.front().logits.size());
  ControlLimits limits = small_limits(vocab);
  limits.max_biases = limits.max_count_updates = 4096;
  limits.max_positions = 1u << 30;
  ControlBlock block(limits);
  std::vector<float> logits(size_t{limits.max_sequences} * vocab);
  std::vector<float> scratch(size_t{limits.max_sequences} * vocab);
  Outcome outcome;
  uint64_t step = 0;
  for (size_t first = 0; first < draws.size(); first += limits.max_sequences) {
    const size_t count = std::min<size_t>(limits.max_sequences, draws.size() - first);
    std::vector<Share> shares;
    for (size_t i = 0; i < count; ++i) {
      const Draw& draw = draws[first + i];
      Share share;
      share.slot = static_cast<uint32_t>(9 - i);
      share.flags = kSequenceReset | kSequenceSample;
      if (!draw.counts.empty()) share.flags |= kSequenceCount;
      share.reset_length = draw.position;
      share.ids = {0};
      share.logit_count = 1;
      share.biases = draw.biases;
      share.counts = draw.counts;
      share.sampling = draw.sampling;
      shares.push_back(share);
      std::copy(draw.logits.begin(), draw.logits.end(), logits.begin() + i * vocab);
    }
    block.submit(++step, shares);
    block.fetch(pack);
    REQUIRE(block.control().error == 0);
    const std::vector<float> before = logits;
    const SampleParams params{&block.control(), logits.data(), scratch.data()};
    pack.run("sample", params, limits.max_sequences, split);
    CHECK(same_bits(before, logits));
    block.commit(pack);
    for (size_t i = 0; i < count; ++i) {
      outcome.tokens.push_back(
          sampled_token(block.sequence_result(step, static_cast<uint32_t>(i))));
      outcome.errors.push_back(block.sequence_result(step, static_cast<uint32_t>(i)).error);
    }
  }
  return outcome;
}

/// Stages 1 and 2 as core.h has them, an operation at a time.
std::vector<float> adjusted(const Draw& draw) {
  std::vector<float> x = draw.logits;
  for (const LogitBias& bias : draw.biases) x[bias.token] += bias.bias;
  std::map<uint32_t, uint32_t> counts;
  for (const CountUpdate& update : draw.counts) {
    counts[update.token] = (counts[update.token] + (update.count & ~1u)) | (update.count & 1u);
  }
  const SamplingInput& s = draw.sampling;
  for (const auto& [token, count] : counts) {
    if (count == 0) continue;
    float& value = x[token];
    value = value < 0 ? value * s.repetition_penalty : value / s.repetition_penalty;
    const float product = s.frequency_penalty * static_cast<float>(count / 2);
    value = value - product;
    if (count / 2 > 0) value = value - s.presence_penalty;
  }
  return x;
}

/// The candidates after stages 4 to 6, by sorting and float64 sums; with their z.
std::map<uint32_t, float> candidates(const Draw& draw) {
  const std::vector<float> x = adjusted(draw);
  const float largest = *std::max_element(x.begin(), x.end());
  std::vector<std::pair<float, uint32_t>> z;
  for (uint32_t i = 0; i < x.size(); ++i) {
    const float one = (x[i] - largest) / draw.sampling.temperature;
    if (one > -kInfinity) z.push_back({one, i});
  }
  std::stable_sort(z.begin(), z.end(), [](auto& a, auto& b) { return a.first > b.first; });
  if (draw.sampling.top_k != 0 && draw.sampling.top_k < z.size()) z.resize(draw.sampling.top_k);
  if (draw.sampling.top_p < 1) {
    double all = 0, sum = 0;
    for (const auto& one : z) all += std::exp(double{one.first});
    size_t kept = 0;
    while (kept < z.size() && (kept == 0 || sum < double{draw.sampling.top_p} * all)) {
      sum += std::exp(double{z[kept++].first});
    }
    z.resize(kept);
  }
  std::map<uint32_t, float> kept;
  for (const auto& [value, token] : z) {
    if (kept.empty() || std::exp(double{value}) >= double{draw.sampling.min_p}) kept[token] = value;
  }
  return kept;
}

double noise(uint64_t seed, uint32_t position, uint32_t token) {
  const double u = (sampling_bits(seed, position, token) + 0.5) * 0x1p-31;
  return -std::log(-std::log1p(-u));
}

/// The token that `sample` must give, or nothing if two are so close that rounding decides.
std::optional<uint32_t> expected(const Draw& draw) {
  if (draw.sampling.temperature == 0) {
    const std::vector<float> x = adjusted(draw);
    return static_cast<uint32_t>(std::max_element(x.begin(), x.end()) - x.begin());
  }
  double best = -HUGE_VAL, second = -HUGE_VAL;
  uint32_t token = kNoToken;
  for (const auto& [id, z] : candidates(draw)) {
    const double value = double{z} + noise(draw.sampling.seed, draw.position, id);
    if (value > best) {
      second = best;
      best = value;
      token = id;
    } else {
      second = std::max(second, value);
    }
  }
  if (best - second < 1e-5) return std::nullopt;
  return token;
}

/// Checks every draw, on every instruction set; those too close to tell may be 1 in 100.
void check_draws(const std::vector<Draw>& draws) {
  const CpuPack pack;
  std::vector<std::optional<uint32_t>> right;
  for (const Draw& draw : draws) right.push_back(expected(draw));
  CHECK(std::count(right.begin(), right.end(), std::nullopt) * 100 <=
        static_cast<long>(draws.size()));
  std::vector<uint32_t> best;
  for (const CpuTarget& target : cpu_targets()) {
    CAPTURE(target.name);
    const ForcedTarget forced(target);
    const Outcome outcome = sample_all(pack, draws, {2, 1});
    size_t wrong = 0;
    for (size_t i = 0; i < draws.size(); ++i) {
      wrong += right[i].has_value() && *right[i] != outcome.tokens[i];
      wrong += outcome.errors[i] != 0;
    }
    CHECK(wrong == 0);
    if (best.empty()) best = outcome.tokens;
    CHECK(best == outcome.tokens);
  }
}

/// `count` draws over one row of logits, seeds 1, 2, 3, ...
std::vector<Draw> many(const Draw& draw, size_t count) {
  std::vector<Draw> draws(count, draw);
  for (size_t i = 0; i < count; ++i) draws[i].sampling.seed = i + 1;
  return draws;
}

std::set<uint32_t> seen(const Draw& draw, size_t count) {
  const Outcome outcome = sample_all(CpuPack(), many(draw, count));
  return {outcome.tokens.begin(), outcome.tokens.end()};
}

double chi_square(const std::vector<uint32_t>& tokens, const std::vector<double>& probability) {
  std::vector<double> counts(probability.size());
  for (const uint32_t token : tokens) ++counts.at(token);
  double sum = 0;
  for (size_t i = 0; i < probability.size(); ++i) {
    const double mean = probability[i] * static_cast<double>(tokens.size());
    if (mean > 0) sum += (counts[i] - mean) * (counts[i] - mean) / mean;
    if (mean == 0) CHECK(counts[i] == 0);
  }
  return sum;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  double sum = 0;
  for (const float logit : logits) sum += p.emplace_back(std::exp(logit / temperature));
  for (double& one : p) one /= sum;
  return p;
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("sample: greedy takes the largest, the lowest id of equal ones") {
    const CpuPack pack;
    CHECK(pack.params_digest("sample") == kSampleParamsDigest);
    for (const uint32_t vocab : {1u, 5u, 16u, 63u, 64u, 65u, 1000u}) {
      CAPTURE(vocab);
      Draw draw;
      draw.logits = normal_values(vocab, vocab);
      draw.logits[vocab / 2] = 9.0f;
      draw.logits[vocab - 1] = 9.0f;
      CHECK(sample_all(pack, {draw}).tokens[0] == vocab / 2);
      draw.logits.assign(vocab, -3.0f);
      CHECK(sample_all(pack, {draw}).tokens[0] == 0);
    }
  }

  TEST_CASE("sample: frequencies over 20,000 seeds are those of the softmax") {
    const CpuPack pack;
    Draw draw;
    draw.logits = {0.5f, -1.0f, 2.0f, 0.0f, 1.5f, -4.0f, 0.7f, 0.6f, -0.3f, 1.0f};
    for (const float temperature : {1.0f, 0.6f, 2.5f}) {
      CAPTURE(temperature);
      draw.sampling = neutral_sampling(temperature);
      const Outcome outcome = sample_all(pack, many(draw, 20'000));
      // 9 degrees of freedom: 33.7 is passed once in 10,000.
      CHECK(chi_square(outcome.tokens, softmax(draw.logits, temperature)) < 33.7);
    }
    // Positions are as good as seeds.
    draw.sampling = neutral_sampling(1.0f, 99);
    std::vector<Draw> draws(20'000, draw);
    for (uint32_t i = 0; i < draws.size(); ++i) draws[i].position = i;
    CHECK(chi_square(sample_all(pack, draws).tokens, softmax(draw.logits, 1.0)) < 33.7);
  }

  TEST_CASE("sample: frequencies after top_k are those of the softmax over the kept") {
    Draw draw;
    draw.logits = {0.5f, -1.0f, 2.0f, 0.0f, 1.5f, -4.0f, 0.7f, 0.6f, -0.3f, 1.0f};
    draw.sampling = neutral_sampling(1.0f);
    draw.sampling.top_k = 4;
    std::vector<float> kept(10, -kInfinity);
    for (const uint32_t i : {2u, 4u, 9u, 6u}) kept[i] = draw.logits[i];
    const Outcome outcome = sample_all(CpuPack(), many(draw, 20'000));
    CHECK(chi_square(outcome.tokens, softmax(kept, 1.0)) < 21.1);  // 3 degrees of freedom
  }

  TEST_CASE("sample: a token's noise does not depend on the others, nor on the vocabulary") {
    // Two tokens far ahead of the rest: who of them wins is the same in any company.
    const auto winners = [](uint32_t vocab, float others) {
      Draw draw;
      draw.logits.assign(vocab, others);
      draw.logits[3] = draw.logits[40] = 50.0f;
      draw.sampling = neutral_sampling(1.0f);
      return sample_all(CpuPack(), many(draw, 200)).tokens;
    };
    const std::vector<uint32_t> first = winners(41, -100.0f);
    CHECK(first == winners(50, 0.0f));
    CHECK(first == winners(1000, 5.0f));
    CHECK(std::set<uint32_t>(first.begin(), first.end()) == std::set<uint32_t>{3, 40});
  }

  TEST_CASE("sample: top_k, top_p and min_p keep exactly the reference's candidates") {
    std::vector<Draw> draws;
    for (uint32_t i = 0; i < 1500; ++i) {
      Draw draw;
      draw.logits = normal_values(1003, i, i % 3 == 0 ? 4.0f : 1.0f);
      if (i % 5 == 0) {  // many ties
        for (float& logit : draw.logits) logit = std::round(logit * 2) / 2;
      }
      draw.sampling = neutral_sampling(0.5f + 0.1f * static_cast<float>(i % 11), i * 7919ull << 20);
      draw.position = i % 77;
      const uint32_t ks[] = {0, 1, 2, 40, 1002, 1003, 5000};
      const float ps[] = {1.0f, 0.9f, 0.5f, 0.05f, 0.999f};
      const float ms[] = {0.0f, 0.02f, 0.3f, 1.0f};
      draw.sampling.top_k = ks[i % 7];
      draw.sampling.top_p = ps[i / 7 % 5];
      draw.sampling.min_p = ms[i / 35 % 4];
      draws.push_back(draw);
    }
    check_draws(draws);
  }

  TEST_CASE("sample: ties at the edge of top_k and top_p go to the lower ids") {
    Draw draw;
    draw.logits.assign(40, 0.0f);
    draw.sampling = neutral_sampling(1.0f);
    draw.sampling.top_k = 3;
    CHECK(seen(draw, 200) == std::set<uint32_t>{0, 1, 2});
    draw.sampling.top_k = 0;
    draw.logits.assign(40, -50.0f);
    for (const uint32_t i : {7u, 8u, 20u, 21u, 30u, 33u, 37u, 39u}) draw.logits[i] = 1.0f;
    draw.sampling.top_p = 0.5f;  // exactly four of eight equal weights
    CHECK(seen(draw, 300) == std::set<uint32_t>{7, 8, 20, 21});
    draw.sampling.top_p = 0.5001f;
    CHECK(seen(draw, 300) == std::set<uint32_t>{7, 8, 20, 21, 30});
    draw.sampling.top_p = 0.0f;  // the largest stays whatever is asked
    CHECK(seen(draw, 50) == std::set<uint32_t>{7});
    draw.sampling.top_p = 1.0f;
    draw.sampling.min_p = 1.0f;
    CHECK(seen(draw, 300) == std::set<uint32_t>{7, 8, 20, 21, 30, 33, 37, 39});
    draw.logits[20] = std::nextafter(1.0f, 2.0f);
    draw.sampling.min_p = 0.0f;
    draw.sampling.top_k = 2;
    CHECK(seen(draw, 100) == std::set<uint32_t>{7, 20});
  }

  TEST_CASE("sample: biases and penalties come before temperature, in their order") {
    std::vector<Draw> draws;
    for (uint32_t i = 0; i < 1000; ++i) {
      Draw draw;
      draw.logits = normal_values(203, i, 2.0f);
      draw.sampling = neutral_sampling(i % 4 == 0 ? 0.0f : 0.8f, i);
      for (uint32_t b = 0; b < i % 4; ++b) {
        draw.biases.push_back({(i * 31 + b) % 203, static_cast<float>(b) * 3 - 4});
      }
      if (i % 4 == 3) draw.biases.push_back(draw.biases[0]);  // one token twice
      for (uint32_t c = 0; c < 5 + i % 30; ++c) {
        draw.counts.push_back({(i * 17 + c * 5) % 203, c % 7});
      }
      const float repetitions[] = {1.0f, 1.3f, 0.8f};
      draw.sampling.repetition_penalty = repetitions[i % 3];
      draw.sampling.presence_penalty = i % 5 == 0 ? 0.0f : 0.7f;
      draw.sampling.frequency_penalty = i % 7 == 0 ? 0.0f : -0.25f;
      if (i % 2 == 0) draw.sampling.top_k = 20;
      draws.push_back(draw);
    }
    check_draws(draws);
  }

  TEST_CASE("sample: vocabularies of 49,152 and 262,144") {
    for (const uint32_t vocab : {49'152u, 262'144u}) {
      std::vector<Draw> draws;
      for (uint32_t i = 0; i < 6; ++i) {
        Draw draw;
        draw.logits = normal_values(vocab, i, i % 2 == 0 ? 2.5f : 0.1f);
        draw.sampling = neutral_sampling(1.0f, 0x1234'5678'9abcull * (i + 1));
        draw.position = 262'143 - i;
        if (i % 4 == 1) draw.sampling.top_p = 0.95f;
        if (i % 4 == 2) draw.sampling.top_k = 50;
        if (i % 4 == 3) draw.sampling.min_p = 0.05f;
        draws.push_back(draw);
      }
      check_draws(draws);
    }
  }

  TEST_CASE("sample: extreme temperatures neither overflow nor lose the order") {
    Draw draw;
    draw.logits = {1e30f, -3e38f, 1e30f, 0.0f, -1e30f};
    draw.sampling = neutral_sampling(1e-30f);
    CHECK(seen(draw, 100) == std::set<uint32_t>{0, 2});
    draw.sampling.top_p = 0.5f;
    CHECK(seen(draw, 100) == std::set<uint32_t>{0});
    draw.logits = {1.0f, 2.0f, 3.0f};
    draw.sampling = neutral_sampling(1e30f);
    CHECK(seen(draw, 100) == std::set<uint32_t>{0, 1, 2});
    draw.sampling.top_k = 1;  // differences vanish into -0, 0: a tie, or nearly
    CHECK(seen(draw, 20).size() == 1);
    draw.sampling = neutral_sampling(-1.0f);  // as 0
    CHECK(seen(draw, 20) == std::set<uint32_t>{2});
  }

  TEST_CASE("sample: what is not finite ends in an error, without a token") {
    const CpuPack pack;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const float temperature : {0.0f, 1.0f}) {
      for (const uint32_t place : {0u, 15u, 16u, 69u}) {
        Draw good;
        good.logits = normal_values(70, 1);
        good.sampling = neutral_sampling(temperature, 3);
        Draw bad = good;
        bad.logits[place] = nan;
        Draw infinite = good;
        infinite.logits[place] = kInfinity;
        Draw biased = good;
        biased.biases = {{place, kInfinity}};
        Draw banned = good;
        banned.biases = {{place, -kInfinity}};
        banned.logits[place] = 100.0f;
        Draw masked = good;
        masked.logits.assign(70, -kInfinity);
        masked.logits[place] = -5.0f;
        Draw nothing = good;
        nothing.logits.assign(70, -kInfinity);
        const Outcome outcome =
            sample_all(pack, {bad, good, infinite, biased, banned, masked, nothing});
        CAPTURE(temperature);
        CAPTURE(place);
        for (const size_t i : {0, 2, 3, 6}) {
          CHECK(outcome.tokens[i] == kNoToken);
          CHECK(outcome.errors[i] == kErrorNotFinite);
        }
        for (const size_t i : {1, 4, 5}) CHECK(outcome.errors[i] == 0);
        CHECK(outcome.tokens[1] < 70);
        CHECK(outcome.tokens[4] < 70);
        CHECK(outcome.tokens[4] != place);
        CHECK(outcome.tokens[5] == place);
      }
    }
  }

  TEST_CASE("sample: with filters, masked tokens are no candidates") {
    Draw draw;
    draw.logits.assign(100, -kInfinity);
    draw.logits[10] = 0.0f;
    draw.logits[90] = -1.0f;
    draw.sampling = neutral_sampling(1.0f);
    draw.sampling.top_k = 5;
    CHECK(seen(draw, 200) == std::set<uint32_t>{10, 90});
    draw.sampling.top_p = 0.999f;
    CHECK(seen(draw, 200) == std::set<uint32_t>{10, 90});
  }
}

}  // namespace atlas::test
