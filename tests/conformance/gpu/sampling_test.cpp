// Sampling kernels of every GPU pack: the tokens, counts, errors and drafts of the CPU pack, for
// every stage and for distributions that are peaked, flat, tied and not finite.
#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/gpu_control.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kSequences = 8;

/// Sequences whose logits are sampled by both packs.
class SampleRun {
 public:
  SampleRun(const std::string& platform, uint32_t vocab)
      : block_(limits(vocab)), twin_(platform), gpu_(twin_.machine(), block_) {
    logits_ = twin_.in_out("logits", std::vector<float>(size_t{kLogitRows} * vocab));
    scratch_ = twin_.machine().output<float>(
        "scratch", sample_scratch_bytes(vocab, kSequences) / sizeof(float));
    host_scratch_.resize(size_t{kSequences} * vocab);
  }
  static ControlLimits limits(uint32_t vocab) {
    ControlLimits limits = small_limits(vocab);
    limits.max_slots = kSequences;
    limits.max_biases = limits.max_count_updates = 400;
    limits.max_logit_rows = kLogitRows;
    limits.max_positions = 1u << 30;
    limits.drafts = 3;
    return limits;
  }

  ControlBlock& block() { return block_; }
  /// Of logit row j.
  float* logits(uint32_t j) { return logits_.host->data() + size_t{j} * block_.limits().vocab; }

  void begin(const std::vector<Share>& shares) {
    block_.submit(block_.control().next_step, shares);
    block_.fetch(twin_.pack());
    REQUIRE(block_.control().error == 0);
  }
  /// Runs `sample` on both sides: all arrays must be the same.
  void sample(uint64_t seed = 0) {
    gpu_.push();
    twin_.machine().write(logits_.gpu, *logits_.host);
    twin_.pack().run("sample",
                     SampleParams{&block_.control(), logits_.host->data(), host_scratch_.data()},
                     kSequences);
    const SampleParams params{gpu_.control(), logits_.gpu, scratch_};
    launch("sample_scan", kSampleParamsDigest, block_.control().logit_count + 1, params, seed);
    launch("sample", kSampleParamsDigest, block_.control().logit_count + 1, params, seed);
    CHECK(gpu_.differences() == "");
  }
  void draft(uint32_t number, uint64_t seed) {
    gpu_.push();
    twin_.machine().write(logits_.gpu, *logits_.host);
    DraftSampleParams params{&block_.control(), logits_.host->data(), host_scratch_.data(), number,
                             0};
    twin_.pack().run("draft_sample", params, kSequences);
    params.control = gpu_.control();
    params.logits = logits_.gpu;
    params.scratch = scratch_;
    launch("draft_scan", kDraftSampleParamsDigest, kSequences, params, seed);
    launch("draft_sample", kDraftSampleParamsDigest, kSequences, params, seed);
    CHECK(gpu_.differences() == "");
  }
  void draft_begin() { twin_.pack().run("draft_begin", DraftBeginParams{&block_.control()}, 1); }
  void commit() { block_.commit(twin_.pack()); }

  /// One row a sequence: begins a step with these samplings, and runs it.
  void draw(std::vector<Share> shares, uint64_t seed = 0) {
    for (uint32_t s = 0; s < shares.size(); ++s) {
      shares[s].slot = s;
      shares[s].flags |= kSequenceReset | kSequenceSample;
      shares[s].ids = {0};
      shares[s].logit_count = 1;
    }
    begin(shares);
    sample(seed);
    commit();
  }
  uint32_t token(uint32_t s) {
    return sampled_token(block_.sequence_result(block_.control().next_step - 1, s));
  }

 private:
  /// Of the parts that a small vocabulary does not have one is enough.
  template <typename Params>
  void launch(const std::string& name, uint64_t digest, uint32_t rows, const Params& params,
              uint64_t seed) {
    LaunchShape shape = gpu_shape(params, rows);
    shape.x = std::min(shape.x, sample_parts(block_.limits().vocab) + 1);
    const auto report = twin_.machine().run(name, params, digest, {.shape = shape, .seed = seed});
    INFO(report.text());
    REQUIRE(report.ok());
  }

  static constexpr uint32_t kLogitRows = 24;
  ControlBlock block_;
  GpuTwin twin_;
  GpuControl gpu_;
  Both<float> logits_;
  float* scratch_ = nullptr;
  std::vector<float> host_scratch_;
};

Share with(SamplingInput sampling) {
  Share share;
  share.sampling = sampling;
  return share;
}

/// Any setting, by a number.
SamplingInput varied_sampling(uint32_t i) {
  SamplingInput sampling =
      neutral_sampling(0.5f + 0.1f * static_cast<float>(i % 11), i * 7919ull << 20);
  const uint32_t ks[] = {0, 1, 2, 40, 1002, 1003, 5000};
  const float ps[] = {1.0f, 0.9f, 0.5f, 0.05f, 0.999f};
  const float ms[] = {0.0f, 0.02f, 0.3f, 1.0f};
  sampling.top_k = ks[i % 7];
  sampling.top_p = ps[i / 7 % 5];
  sampling.min_p = ms[i / 35 % 4];
  return sampling;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: greedy and temperature draw the CPU's tokens for any vocabulary") {
    for (const char* platform : kGpuPlatforms) {
      for (const uint32_t vocab : {1u, 5u, 63u, 65u, 1003u, 9001u}) {
        CAPTURE(platform);
        CAPTURE(vocab);
        SampleRun run(platform, vocab);
        std::vector<Share> shares;
        for (uint32_t s = 0; s < kSequences; ++s) {
          const float temperatures[] = {0.0f, 1.0f, 0.6f, 2.5f, 1e-30f, 1e30f, -1.0f, 0.01f};
          shares.push_back(with(neutral_sampling(temperatures[s], s * 77777 + 5)));
          shares.back().reset_length = s * 1000;
          const auto row = normal_values(vocab, s + vocab, s % 2 == 0 ? 3.0f : 0.1f);
          std::copy(row.begin(), row.end(), run.logits(s));
          // Ties for the largest, and zeros of both signs.
          if (s == 0 || s == 6) run.logits(s)[vocab / 2] = run.logits(s)[vocab - 1] = 30.0f;
          if (s == 5) std::fill_n(run.logits(s), vocab, -0.0f);
        }
        run.draw(shares, vocab % 4);
        CHECK(run.token(0) == vocab / 2);
      }
    }
  }

  TEST_CASE("gpu: top_k, top_p and min_p draw the CPU's tokens") {
    for (const char* platform : kGpuPlatforms) {
      SampleRun run(platform, 1003);
      for (uint32_t first = 0; first < 144; first += kSequences) {
        CAPTURE(platform);
        CAPTURE(first);
        std::vector<Share> shares;
        for (uint32_t s = 0; s < kSequences; ++s) {
          const uint32_t i = first + s;
          auto row = normal_values(1003, i, i % 3 == 0 ? 4.0f : 1.0f);
          if (i % 5 == 0) {  // many ties
            for (float& logit : row) logit = std::round(logit * 2) / 2;
          }
          std::copy(row.begin(), row.end(), run.logits(s));
          shares.push_back(with(varied_sampling(i)));
          shares.back().reset_length = i % 77;
        }
        run.draw(shares, first % 5);
      }
    }
  }

  TEST_CASE("gpu: filters over flat and tied distributions narrow down to the CPU's tokens") {
    constexpr uint32_t kVocab = 20'000;
    for (const char* platform : kGpuPlatforms) {
      SampleRun run(platform, kVocab);
      for (uint32_t round = 0; round < 2; ++round) {
        CAPTURE(platform);
        std::vector<Share> shares;
        for (uint32_t s = 0; s < kSequences; ++s) {
          SamplingInput sampling = neutral_sampling(1.0f, s + 100 * round);
          auto row = normal_values(kVocab, s + 9 * round, 0.1f);
          if (s == 0) sampling.top_p = 0.9f;
          if (s == 1) sampling.top_k = 3000;
          if (s == 2) {  // one value for all, and for all but a few
            std::fill(row.begin(), row.end(), 2.5f);
            if (round == 1) row[17] = row[900] = 2.75f;
            sampling.top_p = 0.5f;
          }
          if (s == 3) {
            std::fill(row.begin(), row.end(), -1.0f);
            sampling.top_k = 15'000;
            sampling.top_p = 0.3f;
          }
          if (s == 4) {  // two values, many of each
            for (float& x : row) x = x > 0 ? 1.0f : 0.0f;
            sampling.top_k = 12'000;
            sampling.top_p = 0.99f;
          }
          if (s == 5) {  // nearly all weight in one token
            row[7] = 60.0f;
            sampling.top_p = 0.95f;
            sampling.min_p = 0.01f;
          }
          if (s == 6) {  // most are masked
            for (uint32_t i = 0; i < kVocab; ++i) {
              if (i % 1999 != 5) row[i] = -kInfinity;
            }
            sampling.top_k = round == 0 ? 4 : 400;
            sampling.top_p = 0.9f;
          }
          if (s == 7) {
            sampling.temperature = round == 0 ? 1e30f : 1e-30f;
            sampling.top_p = 0.7f;
          }
          std::copy(row.begin(), row.end(), run.logits(s));
          shares.push_back(with(sampling));
        }
        run.draw(shares, round);
      }
    }
  }

  TEST_CASE("gpu: biases and penalties come before everything else, as on the CPU") {
    for (const char* platform : kGpuPlatforms) {
      SampleRun run(platform, 777);
      for (uint32_t first = 0; first < 96; first += kSequences) {
        CAPTURE(platform);
        CAPTURE(first);
        std::vector<Share> shares;
        for (uint32_t s = 0; s < kSequences; ++s) {
          const uint32_t i = first + s;
          const auto row = normal_values(777, i, 2.0f);
          std::copy(row.begin(), row.end(), run.logits(s));
          Share share = with(neutral_sampling(i % 4 == 0 ? 0.0f : 0.8f, i));
          for (uint32_t b = 0; b < i % 40; ++b) {
            share.biases.push_back({(i * 31 + b * 7) % 777, static_cast<float>(b % 7) * 1.5f - 4});
          }
          if (i % 4 == 3) share.biases.push_back(share.biases[0]);  // one token twice
          if (i % 6 == 5) share.biases.push_back({i % 777, -kInfinity});
          share.flags = kSequenceCount;
          for (uint32_t c = 0; c < 5 + i % 30; ++c) {
            share.counts.push_back({(i * 17 + c * 5) % 777, c % 7});
          }
          const float repetitions[] = {1.0f, 1.3f, 0.8f};
          share.sampling.repetition_penalty = repetitions[i % 3];
          share.sampling.presence_penalty = i % 5 == 0 ? 0.0f : 0.7f;
          share.sampling.frequency_penalty = i % 7 == 0 ? 0.0f : -0.25f;
          if (i % 2 == 0) share.sampling.top_k = 20;
          if (i % 3 == 0) share.sampling.top_p = 0.8f;
          shares.push_back(share);
        }
        run.draw(shares, first);
      }
    }
  }

  TEST_CASE("gpu: what is not finite gives no token, and neighbours their own") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const char* platform : kGpuPlatforms) {
      for (const float temperature : {0.0f, 1.0f}) {
        for (const uint32_t place : {0u, 15u, 299u}) {
          CAPTURE(platform);
          CAPTURE(place);
          SampleRun run(platform, 300);
          std::vector<Share> shares(kSequences, with(neutral_sampling(temperature, 3)));
          for (uint32_t s = 0; s < kSequences; ++s) {
            const auto row = normal_values(300, 1 + s);
            std::copy(row.begin(), row.end(), run.logits(s));
          }
          run.logits(0)[place] = nan;
          run.logits(2)[place] = kInfinity;
          shares[3].biases = {{place, kInfinity}};
          run.logits(4)[place] = 100.0f;
          shares[4].biases = {{place, -kInfinity}};
          std::fill_n(run.logits(5), 300, -kInfinity);
          run.logits(5)[place] = -5.0f;
          std::fill_n(run.logits(6), 300, -kInfinity);
          if (temperature > 0) shares[2].sampling.top_k = shares[6].sampling.top_k = 4;
          run.draw(shares, place);
          for (const uint32_t s : {0, 2, 3, 6}) CHECK(run.token(s) == kNoToken);
          for (const uint32_t s : {1, 4, 5, 7}) CHECK(run.token(s) < 300);
          CHECK(run.token(5) == place);
        }
      }
    }
  }

  TEST_CASE("gpu: drafts are accepted as on the CPU, and their tokens counted before the next") {
    constexpr uint32_t kVocab = 300;
    for (const char* platform : kGpuPlatforms) {
      for (const uint32_t kind : {0u, 1u, 2u, 3u}) {
        CAPTURE(platform);
        CAPTURE(kind);
        SampleRun run(platform, kVocab);
        std::mt19937 random(kind);
        const uint32_t sequences = 3;
        std::vector<Share> shares(sequences);
        for (uint32_t s = 0; s < sequences; ++s) {
          shares[s].slot = s;
          shares[s].flags = kSequenceReset | kSequenceSample | kSequenceCount;
          shares[s].ids = {1, 2};
          shares[s].logit_count = 1;
          shares[s].sampling = neutral_sampling(kind == 0 ? 0.0f : 0.9f, s + 10 * kind);
          if (kind >= 2) shares[s].sampling.presence_penalty = 1.0f;
          if (kind == 3) shares[s].sampling.top_p = 0.9f;
          if (kind == 3) shares[s].biases = {{5, 1.0f}};
        }
        uint32_t accepted = 0;
        for (uint32_t round = 0; round < 9; ++round) {
          CAPTURE(round);
          // Logits with one or two tokens far ahead: a draft has a fair chance.
          for (uint32_t j = 0; j < 24; ++j) {
            const auto row = normal_values(kVocab, random(), 0.5f);
            std::copy(row.begin(), row.end(), run.logits(j));
            run.logits(j)[40 + j % 3] += 12.0f;
            run.logits(j)[43] += 11.0f;
            if (round == 7 && j % 5 == 3) run.logits(j)[9] = kInfinity;
          }
          run.begin(shares);
          run.sample(round);
          for (uint32_t s = 0; s < sequences; ++s)
            accepted += run.block().control().step.spans[s].accepted;
          run.draft_begin();
          for (uint32_t s = 0; s < sequences; ++s) {
            SlotState& slot = run.block().control().slots[s];
            slot.draft_count = round % 8;
            for (uint32_t& draft : slot.drafts) draft = 40 + random() % 4;
          }
          run.commit();
          for (Share& share : shares) {
            share.flags = kSequenceFeedBack | kSequenceSample | kSequenceCount;
            share.ids.assign(8, 0);
            share.logit_count = 8;
          }
        }
        CHECK(accepted > 5);
      }
    }
  }

  TEST_CASE("gpu: sequences that only prefill, score or have an error are not sampled") {
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      SampleRun run(platform, 100);
      std::vector<Share> shares(5);
      for (uint32_t s = 0; s < 5; ++s) {
        shares[s].slot = 5 - s;
        shares[s].flags = kSequenceReset | kSequenceSample;
        shares[s].ids = {1, 2, 3, 4};
        shares[s].logit_count = 1 + s % 4;
        shares[s].sampling = neutral_sampling(0.3f * static_cast<float>(s), s);
      }
      shares[1].flags = kSequenceReset;
      shares[3].logit_count = 0;
      shares[3].flags = kSequenceReset;
      run.begin(shares);
      run.block().control().slots[1].error = kErrorFeed;
      for (uint32_t j = 0; j < 24; ++j) {
        const auto row = normal_values(100, j);
        std::copy(row.begin(), row.end(), run.logits(j));
      }
      run.sample();
      run.commit();
    }
  }

  TEST_CASE("gpu: draft_sample draws the CPU's drafts, one after another") {
    constexpr uint32_t kVocab = 400;
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      SampleRun run(platform, kVocab);
      std::vector<Share> shares(6);
      for (uint32_t s = 0; s < 6; ++s) {
        shares[s].slot = s;
        shares[s].flags = kSequenceReset | kSequenceSample | kSequenceCount;
        shares[s].ids = {1, 2};
        shares[s].logit_count = 1;
        shares[s].sampling = neutral_sampling(0.4f * static_cast<float>(s % 3), s);
        if (s == 4) shares[s].sampling.top_k = 5;
        if (s == 5) shares[s].sampling.frequency_penalty = 0.5f;
      }
      const auto fill = [&](uint32_t seed) {
        for (uint32_t j = 0; j < 24; ++j) {
          const auto row = normal_values(kVocab, seed + j, 2.0f);
          std::copy(row.begin(), row.end(), run.logits(j));
        }
      };
      fill(1);
      run.begin(shares);
      run.sample();
      run.draft_begin();
      CHECK(run.block().control().draft.row_count == 6);
      for (uint32_t number = 0; number < 3; ++number) {
        fill(100 * number + 50);
        if (number == 1) run.logits(2)[3] = kInfinity;
        run.draft(number, number);
      }
      CHECK(run.block().control().slots[0].draft_count == 3);
      CHECK(run.block().control().slots[2].draft_count == 1);
    }
  }

  TEST_CASE("gpu: a vocabulary of 248,320") {
    constexpr uint32_t kVocab = 248'320;
    SampleRun run("h200", kVocab);
    std::vector<Share> shares;
    for (uint32_t s = 0; s < 6; ++s) {
      const auto row = normal_values(kVocab, s, s % 2 == 0 ? 2.5f : 0.1f);
      std::copy(row.begin(), row.end(), run.logits(s));
      shares.push_back(with(neutral_sampling(s == 5 ? 0.0f : 1.0f, 0x1234'5678'9abcull * (s + 1))));
      if (s == 1 || s == 2) shares.back().sampling.top_p = 0.95f;
      if (s == 2) shares.back().sampling.top_k = 50;
      if (s == 3) shares.back().sampling.min_p = 0.05f;
    }
    run.draw(shares, 1);
  }
}

}  // namespace atlas::test
