// Memory reports: lines that add up, and more positions take more.
#include "tools/atlas-bench/memory_report.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/unit/tools/tools_fixture.h"

using namespace atlas;
using namespace atlas::bench;
using namespace atlas::testing;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("tools bench");

namespace {

MemoryReport report(const tools::EngineNeeds& needs) {
  const auto settings = tools::tool_settings(tiny_options(), needs);
  REQUIRE_MESSAGE(settings, settings.error().message());
  const auto report = report_memory(*settings);
  REQUIRE_MESSAGE(report, report.error().message());
  return *report;
}

}  // namespace

TEST_CASE("memory report: lines add up to the total, formats to the weights") {
  const MemoryReport small = report({.sequences = 1, .sequence_tokens = 16});
  uint64_t total = 0, weights = 0;
  for (const auto& [line, bytes] : small.ledger) total += bytes;
  for (const auto& [format, bytes] : small.weights) weights += bytes;
  CHECK(total == small.total);
  CHECK(weights == small.ledger.at("weights"));
  CHECK(small.weights.contains("q4_1"));
  CHECK(small.weights.contains("vectors"));
  CHECK(small.on_device < small.total);
  CHECK(small.sequences == 1);
  CHECK(small.context_tokens == 16);
  CHECK(small.bytes_a_position > 0);

  const MemoryReport more = report({.sequences = 8, .sequence_tokens = 60});
  CHECK(more.cache_tokens > small.cache_tokens);
  CHECK(more.ledger.at("cache") > small.ledger.at("cache"));
  CHECK(more.ledger.at("weights") == small.ledger.at("weights"));
  const std::string text = memory_text(more);
  for (const char* word : {"weights", "q4_1", "workspace", "total", "8 sequences"}) {
    CHECK(text.find(word) != std::string::npos);
  }
}

TEST_CASE("memory report: a context longer than the model's is counted as the model's, and said") {
  const MemoryReport whole = report({});
  const MemoryReport longer = report({.sequence_tokens = whole.context_tokens + 1});
  CHECK(longer.context_tokens == whole.context_tokens);
  CHECK(longer.total == whole.total);
  const std::string said = fmt::format("made for {} positions: that is what is counted, not {}\n",
                                       whole.context_tokens, whole.context_tokens + 1);
  CHECK_MESSAGE(memory_text(longer).find(said) != std::string::npos, memory_text(longer));
  CHECK(memory_text(whole).find("made for") == std::string::npos);
  const Json json = Json::parse(memory_json(longer, {}));
  CHECK(json["asked_context_tokens"] == whole.context_tokens + 1);
  CHECK(!Json::parse(memory_json(whole, {})).contains("asked_context_tokens"));
}

TEST_CASE("the program: memory reports a model as JSON, and refuses one that is not there") {
  const ProgramRun run =
      run_program("atlas-bench", "memory --json --sequences 2 --context 32 --model " + tiny_gguf());
  REQUIRE_MESSAGE(run.code == 0, run.out);
  const Json json = Json::parse(run.out);
  CHECK(json["sequences"] == 2);
  CHECK(json["context_tokens"] == 32);
  CHECK(json["ledger_bytes"]["weights"] > 0);
  CHECK(run_program("atlas-bench", "memory").code == 1);
  CHECK(run_program("atlas-bench", "memory --model /absent").code == 1);
  const ProgramRun quant =
      run_program("atlas-bench", "memory --quant nvfp4 --model " + tiny_gguf());
  CHECK(quant.code == 2);
  CHECK_MESSAGE(quant.out.find("--quant requires --synthetic") != std::string::npos, quant.out);
}

TEST_SUITE_END();
