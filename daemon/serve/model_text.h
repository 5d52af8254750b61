// Text of the served model: the one place where serve meets the tokenizer and the chat template.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/serve/json.h"

namespace atlas::serve {

/// A rendered chat: the text, and where it came from the client (never parsed for special tokens).
struct RenderedChat {
  std::string text;
  std::vector<std::pair<size_t, size_t>> plain;  // [begin, end) in bytes, ascending
};

/// Token ids of a raw prompt. Errors: kInvalidArgument if the model has no tokenizer.
Result<std::vector<engine::TokenId>> encode_prompt(const engine::ModelInfo& model,
                                                   std::string_view text, bool parse_special,
                                                   bool add_special);
Result<std::vector<engine::TokenId>> encode_chat(const engine::ModelInfo& model,
                                                 const RenderedChat& chat);
/// Bytes of the tokens, which may begin or end inside a character; empty without a tokenizer.
std::string decode_bytes(const engine::ModelInfo& model, std::span<const engine::TokenId> ids,
                         bool skip_special);

/// Renders the model's chat template. Errors: kInvalidArgument says what the template refused, or
/// that there is none.
Result<RenderedChat> render_chat(const engine::ModelInfo& model, const Json& variables);
/// Whether the template reads a variable, attribute or key of that name.
bool template_mentions(const engine::ModelInfo& model, std::string_view identifier);

/// How a model writes tool calls.
enum class ToolFormat {
  kNone,  // in no way that is read here: they stay text
  kJson,  // a JSON object in <tool_call> tags, as Hermes models do
  kXml,   // <function=...> and <parameter=...> in <tool_call> tags, as Qwen3-Coder and Qwen3.5 do
};
/// By the chat template's text: one that has `<tool_call>` teaches calls, and one that has
/// `<function=` too teaches the XML-like form.
ToolFormat tool_format(const engine::ModelInfo& model);

/// Tokens that enclose reasoning.
struct ReasoningTags {
  engine::TokenId open = 0, close = 0;
  std::string open_text, close_text;
};
/// "<think>" and "</think>", if each is a token that prints as itself.
std::optional<ReasoningTags> reasoning_tags(const engine::ModelInfo& model);

}  // namespace atlas::serve
