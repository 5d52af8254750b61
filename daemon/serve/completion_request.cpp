// POST /v1/completions: its prompt in four shapes, echo and log-probabilities.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/serve/fields.h"
#include "daemon/serve/generate_request.h"

namespace atlas::serve {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's
constexpr int64_t kMaxLogprobs = 20;

struct PromptStyle {
  bool parse_special = true;
  bool add_special = true;
  bool echo = false;
  bool skip_special = true;
};

void add_text_prompt(FieldReader& reader, const std::string& text, const PromptStyle& style,
                     GenerateRequest& out) {
  auto ids = encode_prompt(*out.target.model, text, style.parse_special, style.add_special);
  if (!ids) return reader.refuse("prompt", ids.error().message());
  out.prompts.push_back({std::move(*ids), style.echo ? text : std::string()});
}

void add_id_prompt(FieldReader& reader, const Json& list, std::string_view name,
                   const PromptStyle& style, GenerateRequest& out) {
  Prompt prompt;
  read_token_ids(reader, list, name, *out.target.model, prompt.ids);
  if (style.echo) prompt.text = decode_bytes(*out.target.model, prompt.ids, style.skip_special);
  out.prompts.push_back(std::move(prompt));
}

void read_prompts(FieldReader& reader, const PromptStyle& style, const ServeLimits& limits,
                  GenerateRequest& out) {
  const Json* prompt = reader.take("prompt");
  if (!reader.ok()) return;
  if (prompt == nullptr) return reader.refuse("prompt", "`prompt` is missing");
  if (prompt->is_string()) {
    return add_text_prompt(reader, prompt->get_ref<const std::string&>(), style, out);
  }
  if (!prompt->is_array()) {
    return reader.refuse_type("prompt",
                              "a string, a list of strings, a list of token ids, or a "
                              "list of such lists",
                              *prompt);
  }
  if (prompt->empty()) return reader.refuse("prompt", "`prompt` is an empty list");
  if (prompt->front().is_number()) return add_id_prompt(reader, *prompt, "prompt", style, out);
  if (prompt->size() > limits.sequences) {
    return reader.refuse("prompt", fmt::format("`prompt` has {} prompts, and this server takes {} "
                                               "sequences a request",
                                               prompt->size(), limits.sequences));
  }
  for (size_t i = 0; i < prompt->size() && reader.ok(); ++i) {
    const Json& one = (*prompt)[i];
    const std::string name = fmt::format("prompt[{}]", i);
    if (one.type() != prompt->front().type()) {
      reader.refuse(name, fmt::format("`{}` is {} beside {}: prompts must be of one kind", name,
                                      type_word(one), type_word(prompt->front())));
    } else if (one.is_string()) {
      add_text_prompt(reader, one.get_ref<const std::string&>(), style, out);
    } else if (one.is_array()) {
      add_id_prompt(reader, one, name, style, out);
    } else {
      reader.refuse_type(name, "a string or a list of token ids", one);
    }
  }
}

void read_logprobs(FieldReader& reader, GenerateRequest& out) {
  int64_t logprobs = 0;
  if (!reader.integer("logprobs", 0, kMaxLogprobs, logprobs)) return;
  out.spec.logprobs = true;
  out.spec.top_logprobs = static_cast<uint32_t>(logprobs);
  out.spec.prompt_logprobs = out.echo;
}

Refusal read_completion(const Json& body, const Control& control, const ServeLimits& limits,
                        GenerateRequest& out, std::vector<KnownField>* known) {
  FieldReader reader(body);
  out.endpoint = Endpoint::kCompletions;
  read_common_fields(reader, control, limits, out);
  int64_t max_tokens = kDefaultMaxTokens;
  reader.integer("max_tokens", 0, INT32_MAX, max_tokens);
  out.spec.max_tokens = static_cast<uint32_t>(max_tokens);
  reader.boolean("echo", out.echo);
  read_logprobs(reader, out);
  PromptStyle style{.echo = out.echo, .skip_special = out.spec.skip_special};
  reader.boolean("parse_special_tokens", style.parse_special);
  reader.boolean("add_special_tokens", style.add_special);
  reader.neutral(
      "suffix", [](const Json& value) { return value == ""; }, "an empty string");
  read_prompts(reader, style, limits, out);
  if (known != nullptr) *known = reader.known();
  if (Refusal refusal = reader.finish()) return refusal;

  for (const Prompt& prompt : out.prompts) {
    check_prompt(reader, "prompt", prompt.ids.size(), max_tokens > 0, *out.target.model, limits);
  }
  if (out.prompts.size() * out.n > limits.sequences) {
    reader.refuse(
        "n", fmt::format("{} prompts times `n` {} are {} sequences, and this server takes "
                         "{} a request",
                         out.prompts.size(), out.n, out.prompts.size() * out.n, limits.sequences));
  }
  return reader.finish();
}

}  // namespace

Refusal read_completion_request(std::string_view body, const Control& control,
                                const ServeLimits& limits, GenerateRequest& out) {
  Json json;
  if (Refusal refusal = parse_json(body, json)) return refusal;
  return read_completion(json, control, limits, out, nullptr);
}

std::vector<KnownField> completion_fields(const Control& control) {
  std::vector<KnownField> known;
  GenerateRequest request;
  const Json body = Json::object({{"prompt", Json::array({0})}});
  (void)read_completion(body, control, ServeLimits(), request, &known);
  return known;
}

}  // namespace atlas::serve
