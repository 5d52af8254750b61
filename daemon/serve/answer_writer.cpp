// OpenAI's objects, written by hand: a chunk costs an append, not a document.
#include "daemon/serve/answer_writer.h"

#include <fmt/format.h>

#include <iterator>

#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

std::string_view object_word(const GenerateRequest& request) {
  if (request.endpoint == Endpoint::kCompletions) return "text_completion";
  return request.stream ? "chat.completion.chunk" : "chat.completion";
}

void append_usage(std::string& out, const TotalUsage& usage, bool chat) {
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}})",
                 usage.prompt, usage.completion, usage.prompt + usage.completion, usage.cached);
  if (chat) {
    fmt::format_to(std::back_inserter(out),
                   R"(,"completion_tokens_details":{{"reasoning_tokens":{}}})", usage.reasoning);
  }
  out += '}';
}

}  // namespace

void append_call(std::string& list, std::string_view id, const ToolCall& call) {
  list += list.empty() ? R"({"id":)" : R"(,{"id":)";
  append_json_string(list, id);
  list += R"(,"type":"function","function":{"name":)";
  append_json_string(list, call.name);
  list += R"(,"arguments":)";
  append_json_string(list, call.arguments);
  list += "}}";
}

void append_call_begin(std::string& list, uint32_t index, std::string_view id,
                       std::string_view name) {
  fmt::format_to(std::back_inserter(list), R"({}{{"index":{},"id":)", list.empty() ? "" : ",",
                 index);
  append_json_string(list, id);
  list += R"(,"type":"function","function":{"name":)";
  append_json_string(list, name);
  list += R"(,"arguments":""}})";
}

void append_call_arguments(std::string& list, uint32_t index, std::string_view arguments) {
  fmt::format_to(std::back_inserter(list), R"({}{{"index":{},"function":{{"arguments":)",
                 list.empty() ? "" : ",", index);
  append_json_string(list, arguments);
  list += "}}";
}

std::string_view finish_word(engine::FinishReason reason, bool has_calls) {
  if (reason != engine::FinishReason::kStop) return "length";
  return has_calls ? "tool_calls" : "stop";
}

AnswerWriter::AnswerWriter(const GenerateRequest& request, std::string_view id,
                           int64_t created_unix_s)
    : chat_(request.endpoint == Endpoint::kChat),
      usage_in_chunks_(request.include_usage),
      token_ids_(request.return_token_ids) {
  const engine::ModelInfo& model = *request.target.model;
  head_ = R"({"id":)";
  append_json_string(head_, id);
  fmt::format_to(std::back_inserter(head_), R"(,"object":"{}","created":{},"model":)",
                 object_word(request), created_unix_s);
  append_json_string(head_, model.id);
  head_ += R"(,"system_fingerprint":)";
  if (model.fingerprint.empty()) {
    head_ += "null";
  } else {
    append_json_string(head_, model.fingerprint);
  }
  fmt::format_to(std::back_inserter(head_), R"(,"seed":{},"choices":[)",
                 static_cast<int64_t>(request.spec.sampling.seed));
}

void AnswerWriter::choice_end(std::string& out, const ChoiceText& text) const {
  out += R"(,"logprobs":)";
  out += text.logprobs.empty() ? "null" : text.logprobs;
  if (token_ids_) {
    out += R"(,"token_ids":[)";
    out += text.token_ids;
    out += ']';
  }
  out += R"(,"finish_reason":)";
  if (text.finish.empty()) {
    out += "null}";
  } else {
    append_json_string(out, text.finish);
    out += '}';
  }
}

void AnswerWriter::role_chunk(std::string& out, uint32_t index) const {
  out += head_;
  fmt::format_to(std::back_inserter(out),
                 R"({{"index":{},"delta":{{"role":"assistant","content":""}})", index);
  choice_end(out, {});
  out += usage_in_chunks_ ? R"(],"usage":null})" : "]}";
}

void AnswerWriter::chunk(std::string& out, uint32_t index, const ChoiceText& text) const {
  out += head_;
  fmt::format_to(std::back_inserter(out), R"({{"index":{},)", index);
  if (!chat_) {
    out += R"("text":)";
    append_json_string(out, text.content);
  } else {
    out += R"("delta":{)";
    // A chunk that brings nothing still shows `content` when it brings log-probabilities or ids.
    const bool bare = text.reasoning.empty() && text.tool_calls.empty() && text.finish.empty();
    if (!text.reasoning.empty()) {
      out += R"("reasoning_content":)";
      append_json_string(out, text.reasoning);
    }
    if (!text.content.empty() || bare) {
      out += text.reasoning.empty() ? R"("content":)" : R"(,"content":)";
      append_json_string(out, text.content);
    }
    if (!text.tool_calls.empty()) {
      out += out.back() == '{' ? R"("tool_calls":[)" : R"(,"tool_calls":[)";
      out += text.tool_calls;
      out += ']';
    }
    out += '}';
  }
  choice_end(out, text);
  out += usage_in_chunks_ ? R"(],"usage":null})" : "]}";
}

void AnswerWriter::usage_chunk(std::string& out, const TotalUsage& usage) const {
  out += head_;
  out += "],";
  append_usage(out, usage, chat_);
  out += '}';
}

void AnswerWriter::choice(std::string& out, uint32_t index, const ChoiceText& text) const {
  if (index > 0) out += ',';
  fmt::format_to(std::back_inserter(out), R"({{"index":{},)", index);
  if (!chat_) {
    out += R"("text":)";
    append_json_string(out, text.content);
  } else {
    out += R"("message":{"role":"assistant","content":)";
    if (text.content.empty() && !text.tool_calls.empty()) {
      out += "null";
    } else {
      append_json_string(out, text.content);
    }
    if (!text.reasoning.empty()) {
      out += R"(,"reasoning_content":)";
      append_json_string(out, text.reasoning);
    }
    if (!text.tool_calls.empty()) {
      out += R"(,"tool_calls":[)";
      out += text.tool_calls;
      out += ']';
    }
    out += R"(,"refusal":null})";
  }
  choice_end(out, text);
}

void AnswerWriter::end(std::string& out, const TotalUsage& usage) const {
  out += "],";
  append_usage(out, usage, chat_);
  out += '}';
}

}  // namespace atlas::serve
