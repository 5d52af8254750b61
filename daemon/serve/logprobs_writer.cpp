// Log-probabilities as JSON. Forms: OpenAI's API reference, completion and chat completion objects.
#include "daemon/serve/logprobs_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/serve/json_text.h"
#include "daemon/serve/model_text.h"

namespace atlas::serve {
namespace {

void comma(std::string& list) {
  if (!list.empty()) list += ',';
}

bool continues_character(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

size_t characters_begun(std::string_view bytes) {
  return static_cast<size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return !continues_character(c); }));
}

// Parts of characters cannot stand in JSON; OpenAI's completions spell such tokens like this.
std::string completion_text(std::string_view bytes) {
  if (is_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) {
    fmt::format_to(std::back_inserter(text), "\\x{:02x}", static_cast<uint8_t>(c));
  }
  return text;
}

void append_chat_token(std::string& out, std::string_view bytes, float logprob) {
  out += R"({"token":)";
  append_json_string(out, bytes);
  out += R"(,"logprob":)";
  append_json_number(out, logprob);
  out += R"(,"bytes":[)";
  for (size_t i = 0; i < bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "",
                   static_cast<uint8_t>(bytes[i]));
  }
  out += ']';
}

}  // namespace

LogprobsWriter::LogprobsWriter(Endpoint endpoint, std::shared_ptr<const engine::ModelInfo> model,
                               bool skip_special)
    : endpoint_(endpoint), model_(std::move(model)), skip_special_(skip_special) {}

std::string LogprobsWriter::text_of(engine::TokenId id) const {
  if (model_->tokenizer == nullptr) return fmt::format("token_id:{}", id);
  return decode_bytes(*model_, {&id, 1}, false);
}

void LogprobsWriter::add(const engine::TokenLogprob& token, bool scored) {
  if (endpoint_ == Endpoint::kCompletions) {
    add_completion(token, scored);
  } else {
    add_chat(token);
  }
}

void LogprobsWriter::add_completion(const engine::TokenLogprob& token, bool scored) {
  comma(tokens_);
  comma(logprobs_);
  comma(tops_);
  comma(offsets_);
  append_json_string(tokens_, completion_text(text_of(token.token)));

  const std::string printed = decode_bytes(*model_, {&token.token, 1}, skip_special_);
  const bool inside = !printed.empty() && continues_character(printed.front()) && characters_ > 0;
  fmt::format_to(std::back_inserter(offsets_), "{}", characters_ - (inside ? 1 : 0));
  characters_ += characters_begun(printed);

  if (!scored) {
    logprobs_ += "null";
    tops_ += "null";
    return;
  }
  append_json_number(logprobs_, token.logprob);
  // The chosen token is always there. Two tokens of one spelling would be one key: the likelier
  // stays.
  std::vector<std::pair<std::string, float>> entries;
  const auto add_entry = [&](engine::TokenId id, float logprob) {
    std::string text = completion_text(text_of(id));
    for (const auto& [known, value] : entries) {
      if (known == text) return;
    }
    entries.emplace_back(std::move(text), logprob);
  };
  for (const auto& [id, logprob] : token.top) add_entry(id, logprob);
  add_entry(token.token, token.logprob);
  tops_ += '{';
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) tops_ += ',';
    append_json_string(tops_, entries[i].first);
    tops_ += ':';
    append_json_number(tops_, entries[i].second);
  }
  tops_ += '}';
}

void LogprobsWriter::add_chat(const engine::TokenLogprob& token) {
  comma(tokens_);
  append_chat_token(tokens_, text_of(token.token), token.logprob);
  tokens_ += R"(,"top_logprobs":[)";
  for (size_t i = 0; i < token.top.size(); ++i) {
    if (i > 0) tokens_ += ',';
    append_chat_token(tokens_, text_of(token.top[i].first), token.top[i].second);
    tokens_ += '}';
  }
  tokens_ += "]}";
}

void LogprobsWriter::take(std::string& out) {
  if (endpoint_ == Endpoint::kChat) {
    fmt::format_to(std::back_inserter(out), R"({{"content":[{}],"refusal":null}})", tokens_);
  } else {
    fmt::format_to(
        std::back_inserter(out),
        R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
        tokens_, logprobs_, tops_, offsets_);
  }
  tokens_.clear();
  logprobs_.clear();
  tops_.clear();
  offsets_.clear();
}

}  // namespace atlas::serve
