// Retrieval: what the file must say, what counts as an answer, and the trained test model.
#include "tools/atlas-eval/needle.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "daemon/model/tokenizer/tokenizer.h"
#include "tests/unit/tools/tools_fixture.h"
#include "tools/common/files.h"

using namespace atlas;
using namespace atlas::eval;
using namespace atlas::testing;

TEST_SUITE_BEGIN("tools needle");

namespace {

const std::string kFlashMini = std::string(ATLAS_SOURCE_DIR) + "/tests/data/flash-mini";

std::string parse_error(const std::string& text) {
  const auto needles = parse_needles(text, "file");
  REQUIRE_FALSE(needles);
  return needles.error().message();
}

}  // namespace

TEST_CASE("a file of needles: what may be absent, and which line is wrong in what") {
  const auto needles = parse_needles(
      "{\"prompt\": \"a\", \"answer\": \"1\", \"more\": []}\n\n"
      "{\"id\": 7, \"prompt\": \"b\", \"answer\": \"02\", \"depth\": 0.5, \"tokens\": 3, "
      "\"reference_correct\": false}",
      "file");
  REQUIRE_MESSAGE(needles, needles.error().message());
  REQUIRE(needles->size() == 2);
  CHECK((*needles)[0].id == "1");
  CHECK_FALSE((*needles)[0].depth);
  CHECK_FALSE((*needles)[0].reference_correct);
  CHECK((*needles)[1].id == "7");
  CHECK((*needles)[1].answer == "02");
  CHECK(*(*needles)[1].depth == 0.5);
  CHECK(*(*needles)[1].tokens == 3);
  CHECK(*(*needles)[1].reference_correct == false);

  CHECK(parse_error("\n \n") == "file has no line with a needle");
  CHECK(parse_error("\n{\"prompt\"") == "file, line 2: it is no JSON object");
  CHECK(parse_error("[1]") == "file, line 1: it is no JSON object");
  CHECK(parse_error("{\"prompt\": \"a\"}").find("'answer' must be a text") != std::string::npos);
  CHECK(parse_error("{\"prompt\": \"\", \"answer\": \"1\"}").find("'prompt'") != std::string::npos);
  const auto with = [](const std::string& more) {
    return parse_error("{\"prompt\": \"a\", \"answer\": \"1\", " + more + "}");
  };
  CHECK(with("\"depth\": 1.5").find("'depth' must be") != std::string::npos);
  CHECK(with("\"tokens\": -1").find("'tokens' must be") != std::string::npos);
  CHECK(with("\"reference_correct\": 1").find("'reference_correct'") != std::string::npos);
}

TEST_CASE("an answer stands in the reply, and not inside of a longer number") {
  CHECK(holds_answer("The magic number for Oslo is 49571.", "49571"));
  CHECK(holds_answer("149571 or 49571", "49571"));
  CHECK_FALSE(holds_answer("It is 149571.", "49571"));
  CHECK_FALSE(holds_answer("It is 495710.", "49571"));
  CHECK_FALSE(holds_answer("", "49571"));
  CHECK(holds_answer("Oslo1", "Oslo"));  // that is about digits beside digits
}

TEST_CASE("the table counts by length and depth, and the score names what differs") {
  NeedleScore score;
  const auto add = [&](const char* id, uint32_t tokens, std::optional<double> depth, bool right,
                       std::optional<bool> reference) {
    score.answers.push_back({{id, "p", "1", tokens, depth, reference}, tokens, "say \"1\"", right});
  };
  add("a", 511, 0.0, true, true);
  add("b", 512, 0.2, false, true);
  add("c", 1023, 1.0, true, false);
  add("d", 1024, std::nullopt, true, std::nullopt);
  const std::string text = score.text();
  CAPTURE(text);
  CHECK(text.find("256-511              1/1         -         -         -         -       1/1\n") !=
        std::string::npos);
  CHECK(text.find("512-1023               -       0/1         -         -       1/1       1/2\n") !=
        std::string::npos);
  CHECK(text.find("1024-2047              -         -         -         -         -       1/1\n") !=
        std::string::npos);
  CHECK(text.find("right          3 of 4\n") != std::string::npos);
  CHECK(text.find("reference      2 of 3, and these differ:\n") != std::string::npos);
  CHECK(text.find("needle b (512 tokens): wrong, the reference is right: \"say \\\"1\\\"\"\n") !=
        std::string::npos);
  CHECK(text.find("needle c (1023 tokens): right, the reference is wrong") != std::string::npos);
  CHECK(text.find("another number of tokens") == std::string::npos);
}

TEST_CASE("the trained test model finds numbers, together and alone") {
  const auto text = tools::read_text(kFlashMini + "/eval/needles.jsonl");
  REQUIRE(text);
  auto needles = parse_needles(*text, "needles.jsonl");
  REQUIRE_MESSAGE(needles, needles.error().message());
  CHECK(needles->size() == 40);
  needles->resize(3);
  tools::ModelOptions options = tiny_options(kFlashMini);
  const auto tokenizer = tools::model_tokenizer(options);
  REQUIRE_MESSAGE(tokenizer, tokenizer.error().message());
  const auto encoded = encode_needles(*needles, **tokenizer);
  const auto model = open_model(options, {.sequences = 2, .sequence_tokens = 600});
  const auto score = answer_needles(*model, encoded, 32, 2);
  REQUIRE_MESSAGE(score, score.error().message());
  CHECK_MESSAGE(score->right() == 3, score->text());
  CHECK(score->answers[0].reply == "The magic number for Havana is 94364.");
  CHECK(score->text().find("the same ones") != std::string::npos);
  CHECK(score->text().find("another number of tokens") == std::string::npos);
  const auto json = nlohmann::json::parse(score->json(*model));
  CHECK(json["right"] == 3);
  CHECK(json["differ_from_reference"].empty());
  CHECK(json["needles"][2]["prompt_tokens"] == 486);
  // One that does not fit is named before any is answered.
  CHECK(answer_needles(*model, encoded, 590, 2).error().message().find("needle 0 needs 1038") == 0);
}

TEST_CASE("the program: needles of a file, and what is wrong with the file") {
  const TempDir folder;
  const std::string model = "--model " + kFlashMini + " --set engine.reserve_bytes=0 ";
  const ProgramRun run = run_program("atlas-eval", "needle " + model + "--json --limit 1 --file " +
                                                       kFlashMini + "/eval/needles.jsonl");
  CHECK_MESSAGE(run.code == 0, run.out);
  CHECK(nlohmann::json::parse(run.out)["of"] == 1);
  const std::string bad = write_file(folder, "bad.jsonl", "{}\n");
  const ProgramRun refused = run_program("atlas-eval", "needle " + model + "--file " + bad);
  CHECK(refused.code == 1);
  CHECK(refused.out.find("line 1: 'prompt' must be a text") != std::string::npos);
  CHECK(run_program("atlas-eval", "needle " + model).code == 2);
}

TEST_SUITE_END();
