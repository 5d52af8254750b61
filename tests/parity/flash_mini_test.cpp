// flash-mini, a small trained model: its golden tokens and logits, its draft head, and how many of
// its proposals the engine accepts. tests/data/flash-mini/NOTICE says where the model comes from.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/parity/step_walk.h"
#include "tests/support/engine_fixture.h"
#include "tools/atlas-eval/perplexity.h"
#include "tools/common/files.h"
#include "tools/common/local_model.h"

using namespace atlas;
using namespace atlas::testing;
using engine::TokenId;
using plan::StepKind;
using tools::LocalModel;

TEST_SUITE_BEGIN("parity: flash-mini");

namespace {

constexpr float kNear = 2e-4f;
const std::string kFolder = std::string(ATLAS_SOURCE_DIR) + "/tests/data/flash-mini";
using Tokens = std::vector<TokenId>;

struct Prompt {
  std::string name, text;
  Tokens ids;
  Tokens greedy;  // 32 tokens after it, by transformers
  Tokens drafts;  // [i]: the draft head's proposal for greedy[i + 1]
  // Of the last 8 positions: transformers' best 20, and the draft head's best 5.
  std::vector<Tokens> top_ids, draft_top_ids;
  std::vector<std::vector<float>> top_logits, draft_top_logits;

  /// The prompt and `count` greedy tokens.
  Tokens with_greedy(size_t count) const {
    Tokens all = ids;
    all.insert(all.end(), greedy.begin(), greedy.begin() + static_cast<ptrdiff_t>(count));
    return all;
  }
};

const std::vector<Prompt>& prompts() {
  static const std::vector<Prompt> all = [] {
    std::ifstream file(kFolder + "/eval/golden.json");
    REQUIRE(file.good());
    std::vector<Prompt> read;
    const auto golden = nlohmann::json::parse(file);
    for (const auto& one : golden.at("prompts")) {
      read.push_back({one.at("name"), one.at("text"), one.at("ids"), one.at("transformers_greedy"),
                      one.at("mtp_drafts"), one.at("top20_ids"), one.at("mtp_top5_ids"),
                      one.at("top20_logits"), one.at("mtp_top5_logits")});
    }
    return read;
  }();
  return all;
}

settings::Settings flash_mini(uint32_t drafts) {
  settings::Settings settings = small_settings(kFolder, test_platforms()[0].settings);
  settings.engine.prefill_rows = 256;
  settings.engine.cache_tokens = 4096;
  settings.engine.context_tokens = 2048;
  settings.engine.drafts = drafts;
  return settings;
}

std::unique_ptr<LocalModel> open(uint32_t drafts) {
  auto model = LocalModel::open(flash_mini(drafts), 256);
  REQUIRE_MESSAGE(model, model.error().message());
  return std::move(*model);
}

Walked walk_one(const LocalModel& model, const Tokens& tokens, const Cutting& cutting,
                bool drafts) {
  const auto stepper = model.stepper();
  REQUIRE(stepper);
  return walk(**stepper, {tokens}, cutting, drafts);
}

/// Largest distance of the logits in `rows` (the last ones of `computed`) from golden ones.
float distance(std::span<const float> computed, uint32_t vocab, const std::vector<Tokens>& ids,
               const std::vector<std::vector<float>>& logits) {
  float largest = 0;
  const size_t first = computed.size() / vocab - ids.size();
  for (size_t row = 0; row < ids.size(); ++row) {
    for (size_t i = 0; i < ids[row].size(); ++i) {
      const float found = computed[(first + row) * vocab + ids[row][i]];
      largest = std::max(largest, std::abs(found - logits[row][i]));
    }
  }
  return largest;
}

TokenId best(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

engine::RequestSpec greedy_request(const Prompt& prompt) {
  engine::RequestSpec spec;
  spec.prompt = prompt.ids;
  spec.max_tokens = static_cast<uint32_t>(prompt.greedy.size());
  spec.ignore_end_of_generation = true;
  spec.sampling.temperature = 0;
  return spec;
}

/// Counters are published after an answer's last update.
engine::EngineStats stats_after(EngineFixture& engine, uint64_t finished) {
  for (int i = 0; i < 10000; ++i) {
    const engine::EngineStats stats = engine.engine().stats();
    if (stats.requests_finished == finished) return stats;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FAIL("the engine never counted an answer that ended");
  return {};
}

/// What an engine with one draft a step counts if its draft head proposes as `prompt.drafts` says:
/// after an accepted draft the next proposal is made one token further on, and a step's rows end
/// before a multiple of `anchor_tokens`.
std::pair<uint64_t, uint64_t> drafted_and_accepted(const Prompt& prompt, uint32_t anchor_tokens) {
  uint64_t drafted = 0, accepted = 0;
  for (size_t known = 1; known < prompt.greedy.size();) {
    // The position of the last known token, which is the step's first row.
    const size_t position = prompt.ids.size() + known - 1;
    if ((position + 1) % anchor_tokens == 0) {
      ++known;
      continue;
    }
    ++drafted;
    const bool right = prompt.drafts[known - 1] == prompt.greedy[known];
    accepted += right ? 1 : 0;
    known += right ? 2 : 1;
  }
  return {drafted, accepted};
}

}  // namespace

TEST_CASE("flash-mini: tokens, logits and greedy answers are those of transformers") {
  const auto model = open(0);
  const auto tokenizer = model->tokenizer();
  REQUIRE(tokenizer);
  for (const Prompt& prompt : prompts()) {
    CAPTURE(prompt.name);
    CHECK((*tokenizer)->encode(prompt.text, {.parse_special = true}) == prompt.ids);
    const Walked whole = walk_one(*model, prompt.ids, {{256}}, false);
    CHECK(distance(whole.logits, model->info().vocab, prompt.top_ids, prompt.top_logits) < kNear);
  }
  EngineFixture engine(flash_mini(0));
  std::vector<engine::RequestSpec> specs;
  for (const Prompt& prompt : prompts()) specs.push_back(greedy_request(prompt));
  const std::vector<Answer> answers = engine.run(specs);
  for (size_t i = 0; i < answers.size(); ++i) {
    CAPTURE(prompts()[i].name);
    CHECK(answers[i].tokens == prompts()[i].greedy);
  }
}

TEST_CASE("flash-mini: the draft head proposes what its training module proposes") {
  const auto model = open(1);
  const uint32_t vocab = model->info().vocab;
  size_t right = 0, made = 0;
  for (const Prompt& prompt : prompts()) {
    CAPTURE(prompt.name);
    // The last row that is computed has the last greedy token after it.
    const Tokens tokens = prompt.with_greedy(prompt.greedy.size());
    const Walked walked = walk_one(*model, tokens, {{1}, StepKind::kVerify}, true);
    const std::span<const float> all(walked.draft_logits);
    // Row p proposes token p + 2; proposals begin at the prompt's last position.
    CHECK(distance(all.first(prompt.ids.size() * vocab), vocab, prompt.draft_top_ids,
                   prompt.draft_top_logits) < kNear);
    for (size_t i = 0; i < prompt.drafts.size(); ++i) {
      const TokenId proposed = best(all.subspan((prompt.ids.size() - 1 + i) * vocab, vocab));
      CHECK(proposed == prompt.drafts[i]);
      if (i + 1 == prompt.greedy.size()) break;
      ++made;
      right += proposed == prompt.greedy[i + 1];
    }
  }
  CHECK(made == 186);
  CHECK(right == 167);
}

TEST_CASE("flash-mini: the engine accepts as many drafts as those proposals make right") {
  EngineFixture engine(flash_mini(1));
  const uint32_t anchor_tokens = engine.generation().plan().limits.anchor_tokens;
  REQUIRE(anchor_tokens != 0);
  uint64_t drafted = 0, accepted = 0, finished = 0;
  for (const Prompt& prompt : prompts()) {
    CAPTURE(prompt.name);
    CHECK(engine.run(greedy_request(prompt)).tokens == prompt.greedy);
    const auto [more_drafted, more_accepted] = drafted_and_accepted(prompt, anchor_tokens);
    drafted += more_drafted;
    accepted += more_accepted;
    const engine::EngineStats stats = stats_after(engine, ++finished);
    CHECK(stats.drafted_tokens == drafted);
    CHECK(stats.accepted_tokens == accepted);
  }
}

TEST_CASE("flash-mini: acceptance by temperature and drafts, a measurement" * doctest::skip()) {
  constexpr size_t kWindows = 16, kWindow = 256;
  const auto text = tools::read_text(kFolder + "/eval/valid.txt");
  REQUIRE(text);
  for (const uint32_t drafts : {1u, 2u, 3u, 5u, 7u}) {
    EngineFixture engine(flash_mini(drafts));
    const auto ids = engine.generation().info()->tokenizer->encode(*text, {});
    uint64_t drafted = 0, accepted = 0, finished = 0;
    for (const float temperature : {0.0f, 0.7f, 1.0f}) {
      for (size_t i = 0; i < kWindows; ++i) {
        engine::RequestSpec spec = greedy_request({});
        const auto first = ids.begin() + static_cast<ptrdiff_t>(i * (ids.size() / kWindows));
        spec.prompt.assign(first, first + kWindow);
        spec.max_tokens = 128;
        spec.sampling.temperature = temperature;
        spec.sampling.seed = i;
        CHECK(engine.run(spec).tokens.size() == spec.max_tokens);
      }
      const engine::EngineStats stats = stats_after(engine, finished += kWindows);
      MESSAGE("temperature " << temperature << ", " << drafts
                             << " drafts: " << stats.accepted_tokens - accepted << " of "
                             << stats.drafted_tokens - drafted << " accepted");
      accepted = stats.accepted_tokens;
      drafted = stats.drafted_tokens;
    }
  }
}

TEST_CASE("flash-mini: perplexity of two windows is that of transformers") {
  // transformers 5.24, float32, eager attention, over the text's first two windows of 2048 tokens.
  constexpr double kNats = 2.1102435;
  auto text = tools::read_text(kFolder + "/eval/valid.txt");
  REQUIRE(text);
  settings::Settings settings = flash_mini(0);
  auto model = LocalModel::open(settings, 256);
  REQUIRE_MESSAGE(model, model.error().message());
  const auto result = eval::perplexity(**model, text->substr(0, 14000), 2048);
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK(result->windows == 2);
  CHECK(result->nats_per_token() == doctest::Approx(kNats).epsilon(1e-5));
}

TEST_SUITE_END();
