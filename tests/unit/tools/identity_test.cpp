// The comparison of bits: it covers what it says, finds what differs, and a sound engine passes it.
#include "tools/atlas-eval/identity.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/unit/tools/tools_fixture.h"

using namespace atlas;
using namespace atlas::eval;
using namespace atlas::testing;

TEST_SUITE_BEGIN("tools identity");

namespace {

Result<settings::Settings> identity_settings(tools::ModelOptions options) {
  options.threads = 0;
  return tools::tool_settings(options, {kIdentitySlots, kIdentityTokens, kIdentityStepRows});
}

tools::ModelOptions imitation_options() {
  tools::ModelOptions options = tiny_options();
  options.set.push_back("platform.plugin=" + std::string(ATLAS_BINARY_DIR) +
                        "/lib/atlas/test-plugins/platform_imitation.so");
  return options;
}

}  // namespace

TEST_CASE("pairs: all of them are covered by far fewer choices than there are") {
  const std::vector<uint32_t> counts{2, 2, 6, 3};
  const auto choices = cover_pairs(counts);
  CHECK(choices.front() == Choice{0, 0, 0, 0});
  CHECK(pairs_total(counts) == 58);
  CHECK(pairs_covered(choices) == 58);
  CHECK(choices.size() >= 18);  // 6 x 3 pairs of the two largest factors, one a choice
  CHECK(choices.size() <= 24);  // of 72
  CHECK(pairs_covered({choices.front()}) == 6);
  const std::vector<uint32_t> with_one{1, 2, 2};
  CHECK(pairs_covered(cover_pairs(with_one)) == pairs_total(with_one));
}

TEST_CASE("rows: one other bit is found, and said with its place") {
  ReferenceRows rows(2, 3);
  REQUIRE(rows.keep(1, 0, std::vector<float>{1, 2, 3}).ok());
  REQUIRE(rows.keep(1, 1, std::vector<float>{4, 5, 6, 7, 0.0f, 9}).ok());
  rows.compare(1, 0, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 0.0f, 9});
  CHECK(rows.rows() == 3);
  CHECK(rows.rows_different() == 0);
  rows.compare(1, 1, std::vector<float>{4, 5, 6, 7, -0.0f, 9});  // equal, but other bits
  CHECK(rows.rows_different() == 1);
  REQUIRE(rows.first_difference());
  CHECK(rows.first_difference()->sequence == 1);
  CHECK(rows.first_difference()->position == 2);
  CHECK(rows.first_difference()->token == 1);
  CHECK(rows.first_difference()->reference_bits == 0);
  CHECK(rows.first_difference()->bits == 0x80000000u);
  rows.compare(1, 0, std::vector<float>{1, 2, 99});
  CHECK(rows.rows_different() == 2);
  CHECK(rows.first_difference()->position == 2);  // stays
}

TEST_CASE("rows: a reference that is not finite is refused") {
  ReferenceRows rows(1, 2);
  const Status status =
      rows.keep(0, 0, std::vector<float>{1, 2, 3, std::numeric_limits<float>::quiet_NaN()});
  CHECK(status.message() == "sequence 0, position 1: the logit of token 1 is nan");
}

TEST_CASE("walk: every row of every sequence is shown once, in order, however it is cut") {
  const auto model = open_model(tiny_options(), {kIdentitySlots, 80, kIdentityStepRows});
  auto stepper = model->stepper();
  REQUIRE(stepper);
  const Sequences sequences{some_ids(70), some_ids(1, 3), some_ids(20, 5)};
  for (uint32_t cut = 0; cut < kCuts; ++cut) {
    for (uint32_t batch = 0; batch < kBatches; ++batch) {
      CAPTURE(cut);
      CAPTURE(batch);
      std::map<size_t, uint32_t> next;
      const Status status =
          walk(**stepper, sequences, static_cast<Cut>(cut), static_cast<Batch>(batch),
               [&](size_t sequence, uint32_t first, std::span<const float> logits) {
                 CHECK(first == next[sequence]);
                 next[sequence] += static_cast<uint32_t>(logits.size() / (*stepper)->vocab());
                 return Status();
               });
      REQUIRE_MESSAGE(status.ok(), status.message());
      CHECK(next == std::map<size_t, uint32_t>{{0, 70}, {1, 1}, {2, 20}});
    }
  }
}

TEST_CASE("identity: a sound engine gives the same bits in all settings, on both platforms") {
  for (const bool imitation : {false, true}) {
    CAPTURE(imitation);
    const auto settings = identity_settings(imitation ? imitation_options() : tiny_options());
    REQUIRE(settings);
    IdentityOptions options;
    if (!imitation) options.threads = {1, 2};
    options.ids = some_ids(300);
    options.seconds = 60;
    const auto result = compare_identity(*settings, options);
    REQUIRE_MESSAGE(result, result.error().message());
    CHECK_MESSAGE(result->identical(), result->text());
    CHECK_MESSAGE(result->complete(), result->text());
    CHECK(result->pairs_of == (imitation ? 12 + 6 + 18 + 11 : 58));
    CHECK(result->rows == (result->settings.size() - 1) *
                              static_cast<uint64_t>(result->lengths[0] + result->lengths[1] +
                                                    result->lengths[2] + result->lengths[3]));
    CHECK(result->graphs == "on");
    const auto json = nlohmann::json::parse(result->json());
    CHECK(json["identical"] == true);
    CHECK(json["settings"].size() == result->settings.size());
  }
}

TEST_CASE("identity: a graph that differs from its eager walk fails the comparison") {
  tools::ModelOptions tiny = imitation_options();
  tiny.set.push_back("platform.options={corrupt_graphs: true}");
  const auto settings = identity_settings(tiny);
  REQUIRE_MESSAGE(settings, settings.error().message());
  IdentityOptions options;
  options.seconds = 60;
  const auto result = compare_identity(*settings, options);
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK(result->graphs_differ);
  CHECK_FALSE(result->identical());
}

TEST_CASE("identity: without enough time it says so and claims nothing") {
  const auto settings = identity_settings(tiny_options());
  REQUIRE(settings);
  IdentityOptions options;
  options.threads = {1, 2};
  options.seconds = 1e-6;
  const auto result = compare_identity(*settings, options);
  REQUIRE_FALSE(result);
  CHECK(result.error().code() == Code::kDeadlineExceeded);
  CHECK(run_program("atlas-eval", "identity --threads 1 --seconds 0.000001 --model " + tiny_gguf())
            .code == 1);
}

TEST_CASE("identity: too few slots for its sequences are an error") {
  tools::ModelOptions tiny = tiny_options();
  tiny.set.push_back("engine.max_sequences=3");
  const auto settings = identity_settings(tiny);
  REQUIRE(settings);
  const auto result = compare_identity(*settings, {});
  REQUIRE_FALSE(result);
  CHECK(result.error().message().find("engine.max_sequences is 3") != std::string::npos);
}

TEST_CASE("identity: ids beyond the vocabulary are refused") {
  const auto settings = identity_settings(tiny_options());
  REQUIRE(settings);
  IdentityOptions options;
  options.ids = {1, 2, 280};
  const auto result = compare_identity(*settings, options);
  REQUIRE_FALSE(result);
  CHECK(result.error().message() == "the ids have 280, and the vocabulary has 280 tokens");
}

TEST_CASE("identity: a model with a draft head decodes by verify steps") {
  const auto settings =
      identity_settings(tiny_options(ATLAS_SOURCE_DIR "/tests/golden/qwen/qwen4_base"));
  REQUIRE_MESSAGE(settings, settings.error().message());
  IdentityOptions options;
  options.seconds = 20;
  const auto result = compare_identity(*settings, options);
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK_MESSAGE(result->identical(), result->text());
}

TEST_SUITE_END();
