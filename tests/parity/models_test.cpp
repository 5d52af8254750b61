// Every tiny checkpoint of tests/golden/qwen: logits near those of transformers, and the same bits
// however the positions are brought to the model.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/parity/golden_models.h"
#include "tests/parity/step_walk.h"
#include "tests/support/engine_fixture.h"
#include "tools/common/local_model.h"

using namespace atlas;
using namespace atlas::testing;
using plan::StepKind;
using tools::LocalModel;

TEST_SUITE_BEGIN("parity: models");

namespace {

/// The project's goal for float32, absolute.
constexpr float kNear = 2e-4f;
/// Steps of odd sizes, some across anchors, some far below one.
const std::vector<uint32_t> kOdd{1, 7, 3, 13, 31, 2};

std::unique_ptr<LocalModel> open(const GoldenModel& golden,
                                 const settings::PlatformSettings& platform, uint32_t drafts) {
  settings::Settings settings = small_settings(golden.folder, platform);
  settings.engine.max_sequences = static_cast<uint32_t>(golden.sequences.size());
  settings.engine.prefill_rows = std::max(golden.tokens(), 8u);
  settings.engine.drafts = drafts;
  auto model = LocalModel::open(settings, settings.engine.prefill_rows);
  REQUIRE_MESSAGE(model, model.error().message());
  return std::move(*model);
}

std::unique_ptr<engine::Stepper> stepper(const LocalModel& model) {
  auto made = model.stepper();
  REQUIRE_MESSAGE(made, made.error().message());
  return std::move(*made);
}

const settings::PlatformSettings& cpu() {
  static const settings::PlatformSettings platform = [] {
    settings::PlatformSettings one;
    one.options = {{"threads", "1"}};
    return one;
  }();
  return platform;
}

/// What everything else about a model is compared with: each sequence alone, in one step.
Walked reference(const GoldenModel& golden) {
  const auto model = open(golden, cpu(), 0);
  return walk(*stepper(*model), golden.sequences, {{0}});
}

void check_same(const GoldenModel& golden, engine::Stepper& stepper, const Cutting& cutting,
                const Walked& expected, const char* what) {
  CAPTURE(what);
  const Walked walked = walk(stepper, golden.sequences, cutting);
  CHECK(rows_that_differ(walked.logits, expected.logits, golden.vocab) == 0);
}

}  // namespace

TEST_CASE("parity: logits of all positions are those of transformers, and the same in every cut") {
  std::map<std::string, float> largest;
  for (const GoldenModel& golden : golden_models()) {
    CAPTURE(golden.name);
    const auto model = open(golden, cpu(), 0);
    REQUIRE(model->info().vocab == golden.vocab);
    const auto steps = stepper(*model);
    const Walked whole = walk(*steps, golden.sequences, {{0}});
    const float distance = largest_distance(whole.logits, golden.logits);
    CHECK(distance < kNear);
    largest[golden.architecture] = std::max(largest[golden.architecture], distance);
    check_same(golden, *steps, {kOdd}, whole, "odd chunks");
    check_same(golden, *steps, {{1}, steps->decode_kind()}, whole, "token by token");
    check_same(golden, *steps, {{0}, StepKind::kPrefill, true}, whole, "all in one step");
    check_same(golden, *steps, {kOdd, StepKind::kPrefill, true}, whole, "odd chunks, together");
    check_same(golden, *steps, {{1}, steps->decode_kind(), true}, whole, "decoding together");
  }
  for (const auto& [architecture, distance] : largest) {
    MESSAGE(architecture << ": largest distance " << distance);
  }
}

TEST_CASE("parity: the draft head's logits are those of its oracle, and the same in every cut") {
  float largest = 0;
  size_t models = 0;
  for (const GoldenModel& golden : golden_models()) {
    if (golden.draft_logits.empty()) continue;
    CAPTURE(golden.name);
    ++models;
    const Walked trunk = reference(golden);
    const auto model = open(golden, cpu(), 1);
    const auto steps = stepper(*model);
    REQUIRE(steps->decode_kind() == StepKind::kVerify);
    const Walked tokens = walk(*steps, golden.sequences, {{1}, StepKind::kVerify}, true);
    CHECK(rows_that_differ(tokens.logits, trunk.logits, golden.vocab) == 0);
    const float distance = largest_distance(tokens.draft_logits, golden.draft_logits);
    CHECK(distance < kNear);
    largest = std::max(largest, distance);
    const auto same = [&](const Cutting& cutting, const char* what) {
      CAPTURE(what);
      const Walked walked = walk(*steps, golden.sequences, cutting, true);
      CHECK(rows_that_differ(walked.logits, trunk.logits, golden.vocab) == 0);
      CHECK(rows_that_differ(walked.draft_logits, tokens.draft_logits, golden.vocab) == 0);
    };
    same({kOdd}, "odd chunks");
    same({{2}, StepKind::kVerify}, "two rows a step");
    same({{1}, StepKind::kVerify, true}, "decoding together");
    same({kOdd, StepKind::kPrefill, true}, "odd chunks, together");
  }
  CHECK(models == 3);
  MESSAGE("draft heads: largest distance " << largest);
}

TEST_CASE("parity: verify steps of many rows, and a device that alone knows the ids") {
  for (const GoldenModel& golden : golden_models()) {
    if (golden.draft_logits.empty()) continue;
    CAPTURE(golden.name);
    const Walked trunk = reference(golden);
    for (const TestPlatform& platform : test_platforms()) {
      CAPTURE(platform.name);
      const auto model = open(golden, platform.settings, 3);
      const auto steps = stepper(*model);
      check_same(golden, *steps, {{4, 1, 3, 2}, StepKind::kVerify, true}, trunk, "verify");
      check_same(golden, *steps, {kOdd}, trunk, "odd chunks");
    }
  }
}

TEST_SUITE_END();
