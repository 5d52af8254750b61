#include "daemon/engine/answer_text.h"

#include <doctest/doctest.h>

#include "daemon/model/tokenizer/tokenizer.h"

using namespace atlas;
using namespace atlas::engine;

TEST_SUITE_BEGIN("engine");

namespace {

/// A vocabulary of single letters and of the two halves of "é" (C3 A9 in GPT-2's byte alphabet).
model::Tokenizer letters() {
  model::GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (char c = 'a'; c <= 'z'; ++c) vocabulary.tokens.emplace_back(1, c);
  vocabulary.tokens.emplace_back("Ã");
  vocabulary.tokens.emplace_back("©");
  vocabulary.token_types.assign(vocabulary.tokens.size(), 1);
  auto tokenizer = model::Tokenizer::from_gguf(vocabulary);
  REQUIRE_MESSAGE(tokenizer, tokenizer.error().message());
  return *tokenizer;
}

constexpr TokenId kFirstHalf = 26, kSecondHalf = 27;
TokenId letter(char c) { return static_cast<TokenId>(c - 'a'); }

struct Shown {
  std::string text;
  std::vector<TokenId> tokens;
};

Shown feed(AnswerText& answer, const std::vector<TokenId>& tokens) {
  Shown shown;
  Update update;
  for (const TokenId token : tokens) {
    if (!answer.stop_string()) answer.push(token, std::nullopt, update);
  }
  answer.finish(update);
  return {update.text, update.tokens};
}

}  // namespace

TEST_CASE("answer: half a character waits for its other half") {
  const model::Tokenizer tokenizer = letters();
  AnswerText answer(&tokenizer, {});
  Update update;
  answer.push(letter('a'), std::nullopt, update);
  CHECK(update.text == "a");
  answer.push(kFirstHalf, std::nullopt, update);
  CHECK(update.text == "a");
  answer.push(kSecondHalf, std::nullopt, update);
  CHECK(update.text == "aé");
}

TEST_CASE("answer: tokens of a stop string are not shown, tokens before it are") {
  const model::Tokenizer tokenizer = letters();
  RequestSpec spec;
  spec.stop = {"def"};
  AnswerText answer(&tokenizer, spec);
  const Shown shown =
      feed(answer, {letter('a'), letter('b'), letter('c'), letter('d'), letter('e'), letter('f')});
  CHECK(shown.text == "abc");
  CHECK(shown.tokens == std::vector<TokenId>{0, 1, 2});
  CHECK(answer.stop_string() == "def");
}

TEST_CASE("answer: what looked like a stop string comes out at the end, tokens too") {
  const model::Tokenizer tokenizer = letters();
  RequestSpec spec;
  spec.stop = {"defg"};
  AnswerText answer(&tokenizer, spec);
  const Shown shown = feed(answer, {letter('c'), letter('d'), letter('e'), letter('f')});
  CHECK(shown.text == "cdef");
  CHECK(shown.tokens == std::vector<TokenId>{2, 3, 4, 5});
}

TEST_CASE("answer: without a tokenizer ids pass at once") {
  AnswerText answer(nullptr, {});
  Update update;
  answer.push(5, std::nullopt, update);
  CHECK(update.tokens == std::vector<TokenId>{5});
  CHECK(update.text.empty());
}

TEST_SUITE_END();
