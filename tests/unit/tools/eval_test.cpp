// Perplexity, raw logits and greedy ids of tiny models, against what follows from their
// definitions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "daemon/model/tokenizer/tokenizer.h"
#include "tests/unit/tools/tools_fixture.h"
#include "tools/atlas-eval/generate.h"
#include "tools/atlas-eval/logits.h"
#include "tools/atlas-eval/perplexity.h"
#include "tools/common/files.h"

using namespace atlas;
using namespace atlas::testing;
using engine::TokenId;

TEST_SUITE_BEGIN("tools eval");

namespace {

constexpr uint32_t kVocab = 280;

/// The logits of ids as `atlas-eval logits` writes them, [tokens, vocab].
std::vector<float> logits_of(const tools::LocalModel& model, const std::vector<TokenId>& ids,
                             uint32_t chunk) {
  const TempDir folder;
  const std::string path = folder.file("logits");
  const Status status = eval::write_logits(model, ids, path, chunk);
  REQUIRE_MESSAGE(status.ok(), status.message());
  const auto bytes = tools::read_text(path);
  REQUIRE(bytes);
  REQUIRE(bytes->size() == ids.size() * kVocab * sizeof(float));
  std::vector<float> logits(ids.size() * kVocab);
  std::copy(bytes->begin(), bytes->end(), reinterpret_cast<char*>(logits.data()));
  return logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

/// A model whose last norm has a weight that is no number.
std::string write_broken_model(const TempDir& folder) {
  TinyLlama model;
  write_tiny_llama_folder(model, folder.path());
  const std::string path = folder.file("model.safetensors");
  std::string bytes = *tools::read_text(path);
  uint64_t header = 0;
  std::copy_n(bytes.begin(), sizeof(header), reinterpret_cast<char*>(&header));
  const auto json = nlohmann::json::parse(bytes.substr(8, header));
  const uint64_t begin = 8 + header + json["model.norm.weight"]["data_offsets"][0].get<uint64_t>();
  bytes[begin] = '\xc0';  // a bfloat16 NaN
  bytes[begin + 1] = '\x7f';
  write_file(folder, "model.safetensors", bytes);
  return folder.path();
}

}  // namespace

TEST_CASE(
    "surprise: equal logits give log(vocab), a certain token nothing, and large ones no overflow") {
  CHECK(*eval::surprise(std::vector<float>(280, 3.5f), 7) == doctest::Approx(std::log(280.0)));
  CHECK(*eval::surprise(std::vector<float>{0, 200, 0}, 1) == doctest::Approx(0.0));
  CHECK(*eval::surprise(std::vector<float>{3e38f, -3e38f}, 0) == doctest::Approx(0.0));
  CHECK(*eval::surprise(std::vector<float>{1, 2}, 0) ==
        doctest::Approx(std::log1p(std::exp(1.0))).epsilon(1e-12));
}

TEST_CASE("surprise: a logit that is not finite is named") {
  std::vector<float> logits(5, 1.0f);
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  const auto result = eval::surprise(logits, 0);
  REQUIRE_FALSE(result);
  CHECK(result.error().message() == "the logit of token 3 is nan");
  logits[3] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(eval::surprise(logits, 0));
}

TEST_CASE("logits: every chunk size writes the same bytes") {
  const auto ids = some_ids(90);
  const auto all =
      logits_of(*open_model(tiny_options(), {.sequence_tokens = 90, .scored_rows = 90}), ids, 90);
  const auto model = open_model(tiny_options(), {.sequence_tokens = 90, .scored_rows = 64});
  for (const uint32_t chunk : {1u, 7u, 64u, 1000u}) {
    CAPTURE(chunk);
    CHECK(same_bits(logits_of(*model, ids, chunk), all));
  }
  const auto [low, high] = std::minmax_element(all.begin(), all.end());
  CHECK(*high - *low > 0.1f);  // they are not all the same
}

TEST_CASE("logits: ids beyond the vocabulary or the context, and places that cannot be written") {
  const TempDir folder;
  const std::string out = folder.file("out");
  const auto model = open_model(tiny_options(), {.sequence_tokens = 20});
  CHECK(eval::write_logits(*model, {1, 280}, out, 8).message() ==
        "the ids have 280, and the vocabulary has 280 tokens");
  CHECK(eval::write_logits(*model, some_ids(21), out, 8).message().find("21 positions") !=
        std::string::npos);
  CHECK_FALSE(std::ifstream(out));
  CHECK(eval::write_logits(*model, some_ids(5), folder.path(), 8).message().find("cannot write") !=
        std::string::npos);
}

TEST_CASE("a model that computes NaN is an error that says where, and leaves no file") {
  const TempDir folder, out_folder;
  const auto model = open_model(tiny_options(write_broken_model(folder)), {.sequence_tokens = 40});
  const std::string out = out_folder.file("out");
  const Status status = eval::write_logits(*model, some_ids(30), out, 8);
  CHECK(status.code() == Code::kDataLoss);
  CHECK(status.message() == "position 0: the logit of token 0 is nan");
  CHECK_FALSE(std::ifstream(out));
  const auto perplexity = eval::perplexity(*model, std::string(100, 'a') + "bcd", 40);
  REQUIRE_FALSE(perplexity);
  CHECK(perplexity.error().message().find("window 0, position 0: the logit of token 0 is nan") !=
        std::string::npos);
  CHECK_FALSE(eval::generate(*model, some_ids(5), 5, true));
}

TEST_CASE(
    "perplexity: windows from an empty state, all but their first tokens predicted, in float64") {
  const std::string text =
      "It was a dark night, and no lamp was lit; 40 steps up, 12 down. Then - silence!";
  const auto model = open_model(tiny_options(), {.sequence_tokens = 100});
  const auto ids = model->info().tokenizer->encode(text);
  constexpr uint32_t kWindow = 16;
  REQUIRE(ids.size() > 3 * kWindow);
  REQUIRE(ids.size() % kWindow != 0);  // some are left out

  double nats = 0;
  uint64_t predicted = 0, bytes = 0;
  for (size_t first = 0; first + kWindow <= ids.size(); first += kWindow) {
    const std::vector<TokenId> window(ids.begin() + first, ids.begin() + first + kWindow);
    const auto logits = logits_of(*model, window, 1);
    for (uint32_t i = 0; i + 1 < kWindow; ++i) {
      long double sum = 0;
      for (uint32_t t = 0; t < kVocab; ++t) sum += std::exp((long double)(logits[i * kVocab + t]));
      nats += static_cast<double>(std::log(sum) - logits[i * kVocab + window[i + 1]]);
      ++predicted;
    }
    bytes += model->info().tokenizer->decode(window, false).size();
  }
  const auto result = eval::perplexity(*model, text, kWindow);
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK(result->windows == ids.size() / kWindow);
  CHECK(result->predicted == predicted);
  CHECK(result->bytes == bytes);
  CHECK(result->nats == doctest::Approx(nats).epsilon(1e-12));
  CHECK(result->perplexity() == doctest::Approx(std::exp(nats / predicted)).epsilon(1e-12));
  CHECK(result->bits_per_byte() == doctest::Approx(nats / std::log(2.0) / bytes).epsilon(1e-12));
  const auto json = nlohmann::json::parse(result->json(*model));
  CHECK(json["tokens"] == predicted);
  CHECK(json["text_tokens_left_out"] == ids.size() % kWindow);
}

TEST_CASE("perplexity: a text shorter than the window is one window; one token is too little") {
  const auto model = open_model(tiny_options(), {.sequence_tokens = 100});
  const auto short_text = eval::perplexity(*model, "abcdef", 100);
  REQUIRE(short_text);
  CHECK(short_text->windows == 1);
  CHECK(short_text->predicted == short_text->text_tokens - 1);
  CHECK_FALSE(eval::perplexity(*model, "", 100));
  CHECK_FALSE(eval::perplexity(*model, "a", 100));
  CHECK_FALSE(eval::perplexity(*model, "abcdef", 1));
  CHECK(eval::perplexity(*model, "abcdef", 101).error().message().find("context") !=
        std::string::npos);
}

TEST_CASE("generate: the ids are the likeliest ones of the raw logits") {
  const auto model = open_model(tiny_options(), {.sequence_tokens = 64});
  std::vector<TokenId> ids = some_ids(9);
  const auto generated = eval::generate(*model, ids, 12, true);
  REQUIRE_MESSAGE(generated, generated.error().message());
  REQUIRE(generated->ids.size() == 12);
  for (const TokenId id : generated->ids) {
    const auto logits = logits_of(*model, ids, 64);
    const auto last = logits.end() - kVocab;
    CHECK(std::max_element(last, logits.end()) - last == id);
    ids.push_back(id);
  }
  CHECK(generated->finish.reason == engine::FinishReason::kLength);
  CHECK(generated->text == model->info().tokenizer->decode(generated->ids, false));
}

TEST_CASE("generate: without a tokenizer ids come back and no text; what cannot be is refused") {
  const TempDir folder;
  TinyLlama tiny;
  tiny.tokenizer = false;
  write_tiny_llama_folder(tiny, folder.path());
  const auto model = open_model(tiny_options(folder.path()), {.sequence_tokens = 32});
  const auto generated = eval::generate(*model, some_ids(4), 5, true);
  REQUIRE_MESSAGE(generated, generated.error().message());
  CHECK(generated->ids.size() == 5);
  CHECK(generated->text.empty());
  CHECK(model->tokenizer().error().code() == Code::kFailedPrecondition);
  CHECK(eval::perplexity(*model, "text", 8).error().code() == Code::kFailedPrecondition);
  CHECK_FALSE(eval::generate(*model, {280}, 5, true));
  CHECK_FALSE(eval::generate(*model, some_ids(32), 5, true));
}

TEST_CASE(
    "the program: exit code 0 for an answer, 1 for a failure, 2 for wrong usage; JSON is JSON") {
  const TempDir folder;
  const std::string model = "--model " + tiny_gguf() + " --threads 1 --set engine.reserve_bytes=0 ";
  const std::string ids = write_file(folder, "ids.json", "[70, 71, 72]");
  for (const std::string verb : {"perplexity", "identity", "logits", "generate", "needle"}) {
    CAPTURE(verb);
    const ProgramRun help = run_program("atlas-eval", verb + " --help");
    CHECK(help.code == 0);
    CHECK(help.out.find("--json") != std::string::npos);
  }
  CHECK(run_program("atlas-eval", "").code == 2);
  CHECK(run_program("atlas-eval", "generate --model x").code == 2);
  CHECK(run_program("atlas-eval", "generate --model x --ids a --prompt b").code == 2);
  CHECK(run_program("atlas-eval", "perplexity --model x --text y --window 1").code == 2);
  const ProgramRun nan = run_program("atlas-eval", "identity --model x --text y --seconds nan");
  CHECK(nan.code == 2);
  CHECK_MESSAGE(nan.out.find("'nan' is no number from 0 to 86400") != std::string::npos, nan.out);
  const ProgramRun absent =
      run_program("atlas-eval", "perplexity --model /absent --text " + ids + " --window 8");
  CHECK(absent.code == 1);
  CHECK(absent.out.find("atlas-eval: ") == 0);
  CHECK(run_program("atlas-eval", "generate " + model + "--ids " + tiny_gguf()).code == 1);

  const ProgramRun list =
      run_program("atlas-eval", "generate " + model + "--max-tokens 4 --ignore-eos --ids " + ids);
  CHECK(list.code == 0);
  CHECK(nlohmann::json::parse(list.out).size() == 4);
  const ProgramRun object = run_program(
      "atlas-eval", "generate " + model + "--max-tokens 4 --ignore-eos --json --prompt GHI");
  CHECK(object.code == 0);
  CHECK(nlohmann::json::parse(object.out)["ids"].size() == 4);
  const ProgramRun perplexity =
      run_program("atlas-eval", "perplexity " + model + "--window 4 --json --text " + ids);
  CHECK(perplexity.code == 0);
  CHECK(nlohmann::json::parse(perplexity.out)["perplexity"].get<double>() > 1);
  const ProgramRun logits = run_program(
      "atlas-eval", "logits " + model + "--json --ids " + ids + " --out " + folder.file("out"));
  CHECK(logits.code == 0);
  CHECK(nlohmann::json::parse(logits.out)["tokens"] == 3);
}

TEST_SUITE_END();
