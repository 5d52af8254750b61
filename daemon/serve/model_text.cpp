// The tokenizer and the chat template of a model, with errors for models that have none.
#include "daemon/serve/model_text.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/model/chat_template/chat_template.h"
#include "daemon/model/tokenizer/tokenizer.h"

namespace atlas::serve {
namespace {

Status no_tokenizer() {
  return invalid_argument("this model has no tokenizer: send token ids to /v1/completions");
}

}  // namespace

Result<std::vector<engine::TokenId>> encode_prompt(const engine::ModelInfo& model,
                                                   std::string_view text, bool parse_special,
                                                   bool add_special) {
  if (model.tokenizer == nullptr) return no_tokenizer();
  return model.tokenizer->encode(
      text, {.parse_special = parse_special, .add_bos_as_model_says = add_special});
}

// The template wrote the beginning of the text itself, BOS included.
Result<std::vector<engine::TokenId>> encode_chat(const engine::ModelInfo& model,
                                                 const RenderedChat& chat) {
  if (model.tokenizer == nullptr) return no_tokenizer();
  std::vector<model::TextRange> plain;
  plain.reserve(chat.plain.size());
  for (const auto& [begin, end] : chat.plain) plain.push_back({begin, end});
  return model.tokenizer->encode(chat.text, {}, plain);
}

std::string decode_bytes(const engine::ModelInfo& model, std::span<const engine::TokenId> ids,
                         bool skip_special) {
  std::string out;
  if (model.tokenizer == nullptr) return out;
  for (const engine::TokenId id : ids) {
    if (!skip_special || !model.tokenizer->is_special(id)) out += model.tokenizer->token_bytes(id);
  }
  return out;
}

Result<RenderedChat> render_chat(const engine::ModelInfo& model, const Json& variables) {
  if (model.chat_template == nullptr) {
    return invalid_argument("this model has no chat template: use /v1/completions");
  }
  static const std::vector<std::string> trusted = {"bos_token", "eos_token"};
  auto prompt = model.chat_template->render(variables, trusted);
  if (!prompt) return prompt.error();
  return RenderedChat{std::move(prompt->text), std::move(prompt->plain_ranges)};
}

bool template_mentions(const engine::ModelInfo& model, std::string_view identifier) {
  return model.chat_template != nullptr && model.chat_template->mentions(identifier);
}

ToolFormat tool_format(const engine::ModelInfo& model) {
  if (model.chat_template == nullptr || !model.chat_template->contains("<tool_call>")) {
    return ToolFormat::kNone;
  }
  return model.chat_template->contains("<function=") ? ToolFormat::kXml : ToolFormat::kJson;
}

std::optional<ReasoningTags> reasoning_tags(const engine::ModelInfo& model) {
  if (model.tokenizer == nullptr) return std::nullopt;
  ReasoningTags tags{.open_text = "<think>", .close_text = "</think>"};
  const auto open = model.tokenizer->find_added(tags.open_text);
  const auto close = model.tokenizer->find_added(tags.close_text);
  // Special tokens print no text that could be split at.
  if (!open || !close || model.tokenizer->is_special(*open) ||
      model.tokenizer->is_special(*close)) {
    return std::nullopt;
  }
  tags.open = *open;
  tags.close = *close;
  return tags;
}

}  // namespace atlas::serve
