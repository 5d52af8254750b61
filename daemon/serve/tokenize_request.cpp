// POST /tokenize and /detokenize: ids of a prompt or chat, and the text of ids.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "daemon/serve/fields.h"
#include "daemon/serve/generate_request.h"
#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

void tokenize_prompt(FieldReader& reader, const Json& prompt, const engine::ModelInfo& model,
                     TokenizeAnswer& out) {
  bool parse_special = true;
  bool add_special = true;
  reader.boolean("parse_special_tokens", parse_special);
  reader.boolean("add_special_tokens", add_special);
  if (!reader.ok()) return;
  if (!prompt.is_string()) return reader.refuse_type("prompt", "a string", prompt);
  auto ids = encode_prompt(model, prompt.get_ref<const std::string&>(), parse_special, add_special);
  if (!ids) return reader.refuse("prompt", ids.error().message());
  out.ids = std::move(*ids);
}

void tokenize_chat(FieldReader& reader, const engine::ModelInfo& model, TokenizeAnswer& out) {
  ChatPrompt prompt;
  read_chat_prompt(reader, model, reasoning_tags(model), prompt);
  if (!reader.ok()) return;
  auto ids = encode_chat(model, prompt.rendered);
  if (!ids) return reader.refuse("messages", ids.error().message());
  out.ids = std::move(*ids);
}

}  // namespace

Refusal read_tokenize_request(std::string_view body, const Control& control, TokenizeAnswer& out) {
  Json json;
  if (Refusal refusal = parse_json(body, json)) return refusal;
  FieldReader reader(json);
  const Json* name = reader.take("model");
  if (!reader.ok()) return reader.finish();
  Target target;
  if (Refusal refusal = find_target(control, name, target)) return refusal;
  const engine::ModelInfo& model = *target.model;
  reader.boolean("return_token_strs", out.with_texts);
  const Json* prompt = reader.take("prompt");
  if (prompt != nullptr) {
    tokenize_prompt(reader, *prompt, model, out);
  } else if (json.contains("messages")) {
    tokenize_chat(reader, model, out);
  } else {
    reader.refuse("prompt", "`prompt` or `messages` is missing");
  }
  if (Refusal refusal = reader.finish()) return refusal;
  out.max_model_len = model.context_tokens;
  if (out.with_texts) {
    for (const engine::TokenId id : out.ids) {
      out.texts.push_back(to_utf8(decode_bytes(model, {&id, 1}, false)));
    }
  }
  return std::nullopt;
}

Refusal read_detokenize_request(std::string_view body, const Control& control, std::string& text) {
  Json json;
  if (Refusal refusal = parse_json(body, json)) return refusal;
  FieldReader reader(json);
  const Json* name = reader.take("model");
  if (!reader.ok()) return reader.finish();
  Target target;
  if (Refusal refusal = find_target(control, name, target)) return refusal;
  bool skip_special = false;
  reader.boolean("skip_special_tokens", skip_special);
  const Json* tokens = reader.take("tokens");
  std::vector<engine::TokenId> ids;
  if (tokens == nullptr) {
    reader.refuse("tokens", "`tokens` is missing");
  } else if (!tokens->is_array()) {
    reader.refuse_type("tokens", "a list of token ids", *tokens);
  } else {
    read_token_ids(reader, *tokens, "tokens", *target.model, ids);
  }
  if (target.model->tokenizer == nullptr) {
    reader.refuse("model", "this model has no tokenizer");
  }
  if (Refusal refusal = reader.finish()) return refusal;
  text = to_utf8(decode_bytes(*target.model, ids, skip_special));
  return std::nullopt;
}

}  // namespace atlas::serve
