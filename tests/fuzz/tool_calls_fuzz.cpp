// Hostile answers: whatever a model writes, the sorting of an answer into content, reasoning and
// tool calls ends, loses nothing and does not depend on how the text is cut.
// The first byte picks the form, tags or none, and the way to cut; the rest is the answer.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/serve/output_parser.h"

namespace {

using namespace atlas;
using namespace atlas::serve;

constexpr engine::TokenId kOpen = 1, kClose = 2;
constexpr std::string_view kOpenText = "<think>", kCloseText = "</think>";

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "property violated: %s\n", what);
  std::abort();
}

std::shared_ptr<const ToolSchema> schema() {
  static const auto tools = std::make_shared<const ToolSchema>(Json::parse(R"([
    {"function": {"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": ["boolean", "null"]},
      "o": {"type": "object"}, "m": {"anyOf": [{"type": "string"}, {"type": "array"}]}}}}}])"));
  return tools;
}

struct Options {
  ToolFormat format;
  bool tags, open;
};

struct Sorted {
  // Pieces in order, neighbours of one kind joined.
  std::vector<OutputPiece> pieces;
  uint32_t reasoning_tokens = 0;
};

Sorted sort(const Options& options, std::string_view text,
            const std::vector<engine::TokenId>& tokens, size_t piece_bytes) {
  auto calls = make_call_sorter(options.format, schema());
  auto parser = options.tags ? make_reasoning_parser(
                                   {kOpen, kClose, std::string(kOpenText), std::string(kCloseText)},
                                   options.open, std::move(calls))
                             : make_plain_parser(std::move(calls));
  std::vector<OutputPiece> out;
  parser->feed({}, tokens, out);
  for (size_t at = 0; at < text.size(); at += piece_bytes) {
    parser->feed(text.substr(at, piece_bytes), {}, out);
  }
  parser->finish(out);
  Sorted sorted;
  for (OutputPiece& piece : out) {
    require(piece.kind == OutputPiece::kCall || !piece.text.empty(), "no piece is empty");
    if (piece.kind != OutputPiece::kCall && !sorted.pieces.empty() &&
        sorted.pieces.back().kind == piece.kind) {
      sorted.pieces.back().text += piece.text;
    } else {
      sorted.pieces.push_back(std::move(piece));
    }
  }
  sorted.reasoning_tokens = parser->reasoning_tokens();
  return sorted;
}

void check(const Options& options, std::string_view text, const Sorted& sorted) {
  std::string said;
  size_t calls = 0;
  for (const OutputPiece& piece : sorted.pieces) {
    if (piece.kind == OutputPiece::kCall) {
      ++calls;
      require(!piece.name.empty(), "a call has a name");
      // Bytes that are no UTF-8 are the engine's to keep away; JSON's writer mends them.
      require(nlohmann::json::accept(piece.text) && is_json_object(piece.text),
              "arguments are a JSON object");
    } else {
      require(options.tags || piece.kind == OutputPiece::kContent, "no reasoning without tags");
      said += piece.text;
    }
  }
  require(options.format != ToolFormat::kNone || calls == 0, "no call without a form");
  if (calls == 0 && !options.tags) require(said == text, "without calls all text is content");
  // What is said stands in the text in the same order.
  size_t at = 0;
  for (const char byte : said) {
    at = text.find(byte, at);
    require(at != text.npos, "nothing is said that was not written");
    ++at;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Options options = {
      .format = static_cast<ToolFormat>(data[0] % 3),
      .tags = (data[0] & 0x10) != 0,
      .open = (data[0] & 0x20) != 0,
  };
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<engine::TokenId> tokens;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text.substr(at).starts_with(kOpenText)) tokens.push_back(kOpen);
    if (text.substr(at).starts_with(kCloseText)) tokens.push_back(kClose);
    if (at % 5 == 0) tokens.push_back(7);
  }
  const Sorted whole = sort(options, text, tokens, text.size() + 1);
  check(options, text, whole);
  for (const size_t piece_bytes : {size_t{1}, size_t{2} + data[0] % 13}) {
    const Sorted cut = sort(options, text, tokens, piece_bytes);
    require(cut.pieces.size() == whole.pieces.size(), "the cut changes no piece");
    for (size_t i = 0; i < cut.pieces.size(); ++i) {
      require(cut.pieces[i].kind == whole.pieces[i].kind &&
                  cut.pieces[i].text == whole.pieces[i].text &&
                  cut.pieces[i].name == whole.pieces[i].name,
              "the cut changes no text");
    }
    require(cut.reasoning_tokens == whole.reasoning_tokens, "the cut changes no count");
  }
  return 0;
}
