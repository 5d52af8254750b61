// The prefix cache in the whole engine, on a trained model with recurrent layers, sparse attention,
// n-grams and a draft head: a warm answer is the bytes of a cold one.
#include <doctest/doctest.h>

#include <random>

#include "tests/support/engine_fixture.h"

using namespace atlas;
using namespace atlas::engine;
using namespace atlas::testing;

TEST_SUITE_BEGIN("engine prefix");

namespace {

settings::Settings flash_mini(const settings::PlatformSettings& platform, uint32_t drafts,
                              uint64_t cache_tokens = 4096) {
  settings::Settings settings =
      small_settings(std::string(ATLAS_SOURCE_DIR) + "/tests/data/flash-mini", platform);
  settings.engine.context_tokens = 1024;
  settings.engine.cache_tokens = cache_tokens;
  settings.engine.drafts = drafts;
  return settings;
}

RequestSpec request(std::vector<TokenId> prompt, uint32_t max_tokens, float temperature = 0) {
  RequestSpec spec;
  spec.prompt = std::move(prompt);
  spec.max_tokens = max_tokens;
  spec.ignore_end_of_generation = true;
  spec.sampling.temperature = temperature;
  spec.sampling.seed = 11;
  spec.logprobs = true;
  return spec;
}

std::vector<TokenId> some_tokens(uint32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = random() % 4000;
  return tokens;
}

std::vector<TokenId> operator+(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The answer of an engine that has seen nothing before.
Answer cold(const settings::Settings& settings, const RequestSpec& spec) {
  EngineFixture fixture(settings);
  Answer answer = fixture.run(spec);
  CHECK(answer.finish->usage.cached_tokens == 0);
  return answer;
}

}  // namespace

TEST_CASE("prefix: a prompt that is known is not computed again, and its answer is the same") {
  for (const TestPlatform& platform : test_platforms()) {
    CAPTURE(platform.name);
    for (const uint32_t drafts : {0u, 3u}) {
      const settings::Settings settings = flash_mini(platform.settings, drafts);
      const RequestSpec spec = request(some_tokens(300, 1), 40, 0.8f);
      EngineFixture fixture(settings);
      const Answer first = fixture.run(spec);
      const Answer second = fixture.run(spec);
      CHECK(first.finish->usage.cached_tokens == 0);
      CHECK(second.finish->usage.cached_tokens == 256);
      CHECK(first == second);
      CHECK(fixture.engine().stats().prefix.exact == 1);
    }
  }
}

TEST_CASE(
    "prefix: requests that go on from 1 to 70 tokens past a state have the bytes of cold ones") {
  const settings::Settings settings = flash_mini(test_platforms()[0].settings, 2);
  EngineFixture fixture(settings), fresh(settings);
  uint32_t seed = 100;
  for (const uint32_t past : {1u, 2u, 7u, 31u, 63u, 64u, 65u, 70u}) {
    CAPTURE(past);
    // A turn that ends `past` tokens behind a state, and the next turn of the same conversation.
    const uint32_t answer_tokens = 5;
    const std::vector<TokenId> prompt = some_tokens(128 + past - answer_tokens + 1, ++seed);
    const Answer turn = fixture.run(request(prompt, answer_tokens));
    const std::vector<TokenId> all = prompt + turn.tokens + some_tokens(20, ++seed);
    const Answer warm = fixture.run(request(all, 12, 1.0f));
    CHECK(warm.finish->usage.cached_tokens >= 128);
    const Answer reference = fresh.run(request(all, 12, 1.0f));
    CHECK(reference.finish->usage.cached_tokens == 0);
    CHECK(warm == reference);
  }
}

TEST_CASE("prefix: a part of a prompt is shared, also between requests that run at once") {
  for (const TestPlatform& platform : test_platforms()) {
    CAPTURE(platform.name);
    const settings::Settings settings = flash_mini(platform.settings, 1);
    const std::vector<TokenId> system = some_tokens(200, 7);
    std::vector<RequestSpec> specs;
    for (uint32_t i = 0; i < 4; ++i) {
      specs.push_back(request(system + some_tokens(30 + 40 * i, 50 + i), 20, i % 2 ? 0.9f : 0.0f));
    }
    specs[2].sampling.repetition_penalty = 1.2f;  // counts the ids of the cached prefix too
    specs[3].sampling.presence_penalty = 0.5f;
    EngineFixture fixture(settings);
    fixture.run(request(system + some_tokens(60, 99), 4));
    const std::vector<Answer> warm = fixture.run(specs);
    for (uint32_t i = 0; i < 4; ++i) {
      CAPTURE(i);
      CHECK(warm[i] == cold(settings, specs[i]));
    }
    // Where the first two parted there was no state; the second left one for all that follow.
    const Answer later = fixture.run(request(system + some_tokens(33, 500), 8));
    CHECK(later.finish->usage.cached_tokens == 192);
    CHECK(later == cold(settings, request(system + some_tokens(33, 500), 8)));
    CHECK(fixture.engine().stats().prefix.recomputed_tokens >= 192);
  }
}

TEST_CASE("prefix: after eviction of pages and states answers stay the same") {
  // Room for two contexts, and hardly more states than live sequences need.
  settings::Settings settings = flash_mini(test_platforms()[0].settings, 2, 2048);
  settings.engine.snapshot_bytes = 3u << 20;
  EngineFixture fixture(settings), fresh(flash_mini(test_platforms()[0].settings, 0));
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < 6; ++i) {
      CAPTURE(round);
      CAPTURE(i);
      const RequestSpec spec = request(some_tokens(400 + 50 * i, i), 10, 0.5f);
      CHECK(fixture.run(spec) == fresh.run(spec));
    }
  }
  const EngineStats stats = fixture.engine().stats();
  CHECK(stats.prefix.exact + stats.prefix.anchor + stats.prefix.pages + stats.prefix.miss == 18);
}

TEST_CASE("prefix: a cancelled request leaves what it computed, and nothing is lost") {
  const settings::Settings settings = flash_mini(test_platforms()[0].settings, 1);
  EngineFixture fixture(settings);
  const std::vector<TokenId> prompt = some_tokens(500, 3);
  const auto id = fixture.submit(request(prompt, 500));
  REQUIRE(id);
  while (fixture.tokens_so_far(*id) < 10) std::this_thread::yield();
  fixture.engine().cancel(*id);
  fixture.answer(*id);
  const Answer warm = fixture.run(request(prompt, 20));
  CHECK(warm.finish->usage.cached_tokens == 448);
  CHECK(warm == cold(settings, request(prompt, 20)));
  const EngineStats stats = fixture.engine().stats();
  CHECK(stats.pages_used == stats.prefix_pages);
}

TEST_CASE(
    "prefix: echo computes the whole prompt, and another generation starts with an empty cache") {
  const settings::Settings settings = flash_mini(test_platforms()[0].settings, 1);
  EngineFixture fixture(settings);
  RequestSpec spec = request(some_tokens(200, 4), 8);
  const Answer first = fixture.run(spec);
  spec.prompt_logprobs = true;
  const Answer echo = fixture.run(spec);
  CHECK(echo.finish->usage.cached_tokens == 0);
  CHECK(echo.tokens == first.tokens);
  spec.prompt_logprobs = false;
  settings::Settings changed = settings;
  changed.engine.graphs = false;
  REQUIRE(fixture.swap(changed).ok());
  const Answer after = fixture.run(spec);
  CHECK(after.finish->usage.cached_tokens == 0);
  CHECK(after == first);
  CHECK(fixture.engine().stats().prefix.miss == 2);  // of both generations; the echo looks up none
}

TEST_SUITE_END();
