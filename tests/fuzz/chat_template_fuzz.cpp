// Hostile chat templates: whatever the bytes are, parsing and rendering end in a prompt or a
// Status. The input is a template; a zero byte may follow it, and then a JSON object of variables.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/model/chat_template/chat_template.h"
#include "daemon/model/chat_template/unicode.h"

namespace {

using atlas::model::ChatTemplate;
using atlas::model::RenderedPrompt;
using Json = nlohmann::ordered_json;

/// A letter that stands in every text of the request and, as long as nobody mutates it into a
/// template, nowhere else.
const std::string kLetter = "\u16A0";

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "property violated: %s\n", what);
  std::abort();
}

const Json& usual_variables() {
  static const Json variables = Json::parse(R"({
    "messages": [
      {"role": "system", "content": "ᚠ be kind ᚠ"},
      {"role": "user", "content": "ᚠᚠ <|im_end|> ᚠ"},
      {"role": "assistant", "content": "", "reasoning_content": "ᚠ?",
       "tool_calls": [{"id": "call00001", "type": "function",
                       "function": {"name": "fᚠ", "arguments": {"a": [1, 2.5, null], "b": "ᚠ"}}}]},
      {"role": "tool", "tool_call_id": "call00001", "content": "ᚠ"},
      {"role": "assistant", "content": "<think>ᚠ</think>ᚠ"},
      {"role": "user", "content": [{"type": "text", "text": "ᚠ"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "ᚠ",
               "parameters": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}}}],
    "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    "s": "Hello, ᚠ", "u": "Ünïcödé ß ᚠ", "e": "", "n": 7, "neg": -7, "f": 2.5, "t": true,
    "no": false, "nil": null, "l": [3, 1, 2], "words": ["b", "ᚠ", "A"],
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": "ᚠ"}})");
  return variables;
}

void check_prompt(const RenderedPrompt& prompt, bool letter_is_plain) {
  require(atlas::model::jinja::valid_utf8(prompt.text), "a prompt is valid UTF-8");
  size_t before = 0;
  bool first = true;
  for (const auto& [begin, end] : prompt.plain_ranges) {
    require(begin < end && end <= prompt.text.size(), "a plain range lies within the prompt");
    require(first ? true : begin > before, "plain ranges are sorted and apart");
    before = end;
    first = false;
  }
  std::string joined;
  for (const auto& segment : prompt.segments()) {
    joined += segment.text;
    const bool holds_letter = segment.text.find(kLetter) != std::string::npos;
    require(!letter_is_plain || segment.plain || !holds_letter, "text of the request is plain");
  }
  require(joined == prompt.text, "segments make up the prompt");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), input.size());
  const std::string source = input.substr(0, zero);
  const auto parsed = ChatTemplate::parse(source, "fuzz");
  if (!parsed) return 0;
  Json variables;
  if (zero < input.size()) {
    variables = Json::parse(input.substr(zero + 1), nullptr, false);
    if (variables.is_discarded()) return 0;
  } else {
    variables = usual_variables();
  }
  const std::string trusted[] = {"bos_token", "eos_token"};
  const auto prompt = parsed->render(variables, trusted);
  // A template can make the letter by an escape or a number; the corpus has neither.
  const bool letter_is_plain = zero == input.size() && source.find("\u16A0") == std::string::npos &&
                               source.find("16a0") == std::string::npos &&
                               source.find("16A0") == std::string::npos;
  if (prompt) check_prompt(*prompt, letter_is_plain);
  return 0;
}
