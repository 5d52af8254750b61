// Sorting answers into reasoning and content, and the border of reasoning and tool calls.
#include "daemon/serve/output_parser.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using namespace atlas;
using namespace atlas::serve;

TEST_SUITE_BEGIN("serve");

namespace {

constexpr engine::TokenId kOpen = 100, kClose = 101, kWord = 1;

struct Feed {
  std::string text;
  std::vector<engine::TokenId> tokens;
};

struct Sorted {
  std::string reasoning, content;
  std::vector<OutputPiece> pieces;
  uint32_t reasoning_tokens = 0;
};

Sorted sort(const std::vector<Feed>& feeds, bool open) {
  auto parser = make_reasoning_parser({kOpen, kClose, "<think>", "</think>"}, open);
  Sorted out;
  for (const Feed& feed : feeds) parser->feed(feed.text, feed.tokens, out.pieces);
  parser->finish(out.pieces);
  for (const OutputPiece& piece : out.pieces) {
    (piece.kind == OutputPiece::kReasoning ? out.reasoning : out.content) += piece.text;
  }
  out.reasoning_tokens = parser->reasoning_tokens();
  return out;
}

}  // namespace

TEST_CASE("reasoning: text between the tags is reasoning, without tags and their newlines") {
  const Sorted sorted = sort({{"<think>", {kOpen}},
                              {"\n", {kWord}},
                              {"I think\n\nso", {kWord}},
                              {"\n", {kWord}},
                              {"</think>", {kClose}},
                              {"\n\n", {kWord}},
                              {"Yes.\n", {kWord}}},
                             false);
  CHECK(sorted.reasoning == "I think\n\nso");
  CHECK(sorted.content == "Yes.\n");
  CHECK(sorted.reasoning_tokens == 3);
}

TEST_CASE("reasoning: a tag opened by the prompt counts") {
  const Sorted sorted = sort({{"hm", {kWord}}, {"</think>", {kClose}}, {"ok", {kWord}}}, true);
  CHECK(sorted.reasoning == "hm");
  CHECK(sorted.content == "ok");
  CHECK(sorted.reasoning_tokens == 1);
}

TEST_CASE("reasoning: a tag whose text comes late and in pieces is put together") {
  const Sorted sorted = sort({{"<think>", {kOpen}},
                              {"a", {kWord}},
                              {"", {kClose}},
                              {"</th", {kWord}},
                              {"ink", {}},
                              {">b", {}}},
                             false);
  CHECK(sorted.reasoning == "a");
  CHECK(sorted.content == "b");
}

TEST_CASE("reasoning: the letters of a tag without its token are text") {
  const Sorted sorted = sort({{"use <th", {kWord}}, {"ink> and </think>", {kWord}}}, false);
  CHECK(sorted.content == "use <think> and </think>");
  CHECK(sorted.reasoning == "");
}

TEST_CASE("reasoning: content is passed on at once") {
  auto parser = make_reasoning_parser({kOpen, kClose, "<think>", "</think>"}, false);
  std::vector<OutputPiece> pieces;
  parser->feed("a <", std::vector<engine::TokenId>{kWord}, pieces);
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].text == "a <");
}

TEST_CASE("reasoning: a closing tag that nobody opened never reaches content") {
  const Sorted sorted = sort({{"a", {kWord}}, {"</think>", {kClose}}, {"b", {kWord}}}, false);
  CHECK(sorted.content == "ab");
  const Sorted twice = sort({{"<think>", {kOpen}},
                             {"x", {kWord}},
                             {"</think>", {kClose}},
                             {"y", {kWord}},
                             {"<think>", {kOpen}},
                             {"z", {kWord}}},
                            false);
  CHECK(twice.reasoning == "xz");
  CHECK(twice.content == "y");
}

TEST_CASE("reasoning: what was held back comes at the end") {
  const Sorted unfinished = sort({{"<think>", {kOpen}}, {"a\n", {kWord}}}, false);
  CHECK(unfinished.reasoning == "a\n");
  // A stop string took the end of the tag.
  const Sorted cut = sort({{"<think>", {kOpen}}, {"a</th", {kWord, kClose}}}, false);
  CHECK(cut.reasoning == "a</th");
}

TEST_CASE("reasoning: every way to cut the text into updates gives the same answer") {
  const std::string text = "<think>\na\n\nb\n</think>\n\nc</d";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      const Sorted sorted = sort({{text.substr(0, first), {kOpen, kClose}},
                                  {text.substr(first, second - first), {}},
                                  {text.substr(second), {}}},
                                 false);
      CHECK(sorted.reasoning == "a\n\nb");
      CHECK(sorted.content == "c</d");
    }
  }
}

namespace {

std::vector<OutputPiece> with_reasoning(
    const std::vector<std::pair<std::string, engine::TokenId>>& feeds, bool open,
    uint32_t& reasoning_tokens) {
  auto parser = make_reasoning_parser({kOpen, kClose, "<think>", "</think>"}, open,
                                      make_call_sorter(ToolFormat::kJson, nullptr));
  std::vector<OutputPiece> out;
  for (const auto& [text, token] : feeds) parser->feed(text, {&token, 1}, out);
  parser->finish(out);
  reasoning_tokens = parser->reasoning_tokens();
  std::vector<OutputPiece> joined;
  for (OutputPiece& piece : out) {
    if (!joined.empty() && joined.back().kind == piece.kind && piece.kind != OutputPiece::kCall) {
      joined.back().text += piece.text;
    } else {
      joined.push_back(std::move(piece));
    }
  }
  return joined;
}

}  // namespace

TEST_CASE("calls: reasoning is not searched for calls") {
  uint32_t tokens = 0;
  const std::string call = std::string("<tool_call>{\"name\": \"f\"}</tool_call>");
  const auto pieces = with_reasoning({{"I would " + call, kWord},
                                      {"\n", kWord},
                                      {"</think>", kClose},
                                      {"\n\n", kWord},
                                      {"<tool_", kWord},
                                      {call.substr(6), kWord}},
                                     true, tokens);
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].kind == OutputPiece::kReasoning);
  CHECK(pieces[0].text == "I would " + call);
  CHECK(pieces[1].kind == OutputPiece::kCall);
  CHECK(pieces[1].name == "f");
  CHECK(tokens == 2);
}

TEST_CASE("calls: reasoning tags in a value are text, and their tokens no reasoning") {
  uint32_t tokens = 0;
  const auto pieces = with_reasoning({{R"(<tool_call>{"name": "f", "arguments": {"a": ")", kWord},
                                      {"<think>", kOpen},
                                      {"\n", kOpen},
                                      {"\\n", kWord}},
                                     false, tokens);
  // Broken by the newline: content as it stands, and the second tag, whose text never came, counts.
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].kind == OutputPiece::kContent);
  CHECK(pieces[0].text == "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"<think>\n\\n");

  const auto whole = with_reasoning({{R"(<tool_call>{"name": "f", "arguments": {"a": ")", kWord},
                                     {"<think>", kOpen},
                                     {"hm", kWord},
                                     {"</think>", kClose},
                                     {"\"}}", kWord},
                                     {"</tool_call>", kWord}},
                                    false, tokens);
  REQUIRE(whole.size() == 1);
  CHECK(whole[0].kind == OutputPiece::kCall);
  CHECK(whole[0].text == R"({"a": "<think>hm</think>"})");
  CHECK(tokens == 0);
}

TEST_CASE("calls: reasoning that begins in the middle of a call ends it") {
  uint32_t tokens = 0;
  const auto pieces = with_reasoning({{"<tool_call>{", kWord},
                                      {"<think>", kOpen},
                                      {"hm", kWord},
                                      {"</think>", kClose},
                                      {"x", kWord}},
                                     false, tokens);
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[0].text == "<tool_call>{");
  CHECK(pieces[1].kind == OutputPiece::kReasoning);
  CHECK(pieces[1].text == "hm");
  CHECK(pieces[2].text == "x");
  CHECK(tokens == 1);
}

TEST_SUITE_END();
