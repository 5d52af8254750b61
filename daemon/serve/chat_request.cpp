// POST /v1/chat/completions: the chat's own fields, and the rendering of its prompt.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/serve/fields.h"
#include "daemon/serve/generate_request.h"
#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

constexpr int64_t kMaxTopLogprobs = 20;

// Variables that the server sets; clients cannot through chat_template_kwargs.
constexpr std::string_view kOwnVariables[] = {"messages",
                                              "tools",
                                              "documents",
                                              "bos_token",
                                              "eos_token",
                                              "add_generation_prompt",
                                              "continue_final_message"};

bool is_text(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

void read_tool(FieldReader& reader, const Json& tool, size_t index) {
  const std::string where = fmt::format("tools[{}].", index);
  FieldReader inner(tool, where);
  std::string type;
  inner.text("type", type);
  if (inner.ok() && type != "function") {
    inner.refuse("type", fmt::format("`{}type` must be \"function\"", where));
  }
  const Json* function = inner.take("function");
  if (inner.ok() && (function == nullptr || !function->is_object() || !function->contains("name") ||
                     !(*function)["name"].is_string())) {
    inner.refuse("function", fmt::format("`{}function` must be an object with a `name`", where));
  }
  if (inner.ok() && function->contains("strict") && (*function)["strict"] == true) {
    inner.refuse("function.strict",
                 fmt::format("`{}function.strict`: answers are not constrained here", where));
  }
  if (Refusal refusal = inner.finish()) reader.refuse(std::move(*refusal));
}

// The template prints the tools, so they go to it as they came; "none" keeps them out of the
// prompt, and calls in the answer are text then.
void read_tools(FieldReader& reader, const engine::ModelInfo& model, Json& variables,
                ChatPrompt& out) {
  const Json* tools = reader.take("tools");
  const Json* choice = reader.take("tool_choice");
  reader.neutral(
      "functions", [](const Json&) { return false; }, "`tools`");
  reader.neutral(
      "function_call", [](const Json&) { return false; }, "`tool_choice`");
  if (!reader.ok()) return;
  if (choice != nullptr && !is_text(*choice, "none") && !is_text(*choice, "auto")) {
    return reader.refuse("tool_choice",
                         "`tool_choice` must be \"auto\" or \"none\": to force a call, or to "
                         "bound which, needs constrained decoding, which is not there");
  }
  if (tools == nullptr) return;
  if (!tools->is_array()) return reader.refuse_type("tools", "a list", *tools);
  for (size_t i = 0; i < tools->size(); ++i) read_tool(reader, (*tools)[i], i);
  if (tools->empty() || (choice != nullptr && is_text(*choice, "none"))) return;
  if (!template_mentions(model, "tools")) {
    return reader.refuse("tools", "`tools`: the chat template of this model has no tools");
  }
  variables["tools"] = *tools;
  out.tool_format = tool_format(model);
  out.tools = std::make_shared<const ToolSchema>(*tools);
}

void read_template_variables(FieldReader& reader, const engine::ModelInfo& model, Json& variables) {
  const Json* given = reader.take("chat_template_kwargs");
  if (given == nullptr) return;
  if (!given->is_object()) return reader.refuse_type("chat_template_kwargs", "an object", *given);
  for (const auto& [key, value] : given->items()) {
    const std::string name = "chat_template_kwargs." + to_utf8(key.substr(0, 64));
    if (std::find(std::begin(kOwnVariables), std::end(kOwnVariables), key) !=
        std::end(kOwnVariables)) {
      return reader.refuse(name, fmt::format("`{}` has a field of its own", name));
    }
    if (!template_mentions(model, key)) {
      return reader.refuse(
          name, fmt::format("`{}`: the chat template of this model does not use it", name));
    }
    variables[key] = value;
  }
}

// "none" asks for an answer without reasoning; other efforts need a template that knows them.
void read_reasoning_effort(FieldReader& reader, const engine::ModelInfo& model, bool reasons,
                           Json& variables) {
  std::string effort;
  reader.text("reasoning_effort", effort);
  if (!reader.ok() || effort.empty()) return;
  if (template_mentions(model, "reasoning_effort")) {
    variables["reasoning_effort"] = effort;
  } else if (effort == "none" && template_mentions(model, "enable_thinking")) {
    variables["enable_thinking"] = false;
  } else if (effort != "none" || reasons) {
    reader.refuse("reasoning_effort",
                  fmt::format("`reasoning_effort`: \"{}\" is unknown to the chat template of this "
                              "model",
                              to_utf8(effort.substr(0, 64))));
  }
}

bool ends_with_open_tag(std::string_view text, const ReasoningTags& tags) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  return end != text.npos && text.substr(0, end + 1).ends_with(tags.open_text);
}

// Cuts the rendered chat behind the last message's text, so that the answer goes on with it.
bool cut_behind(const std::string& content, RenderedChat& rendered) {
  const size_t last = content.find_last_not_of(" \t\r\n");
  if (last == content.npos) return false;
  const std::string_view text = std::string_view(content).substr(0, last + 1);
  const size_t at = rendered.text.rfind(text);
  if (at == rendered.text.npos) return false;
  rendered.text.resize(at + text.size());
  while (!rendered.plain.empty() && rendered.plain.back().first >= rendered.text.size()) {
    rendered.plain.pop_back();
  }
  if (!rendered.plain.empty()) {
    rendered.plain.back().second = std::min(rendered.plain.back().second, rendered.text.size());
  }
  return true;
}

void read_max_tokens(FieldReader& reader, GenerateRequest& out) {
  int64_t newer = 0;
  int64_t older = 0;
  const bool has_newer = reader.integer("max_completion_tokens", 1, INT32_MAX, newer);
  const bool has_older = reader.integer("max_tokens", 1, INT32_MAX, older);
  if (has_newer && has_older && newer != older) {
    reader.refuse("max_tokens",
                  fmt::format("`max_tokens` {} and `max_completion_tokens` {} differ: send one",
                              older, newer));
  }
  out.spec.max_tokens = UINT32_MAX;  // cut to the room in the context when it is submitted
  if (has_older) out.spec.max_tokens = static_cast<uint32_t>(older);
  if (has_newer) out.spec.max_tokens = static_cast<uint32_t>(newer);
}

void read_logprobs(FieldReader& reader, GenerateRequest& out) {
  reader.boolean("logprobs", out.spec.logprobs);
  int64_t top = 0;
  const bool has_top = reader.integer("top_logprobs", 0, kMaxTopLogprobs, top);
  if (has_top && top > 0 && !out.spec.logprobs) {
    reader.refuse("top_logprobs", "`top_logprobs` needs `logprobs`: true");
  }
  out.spec.top_logprobs = static_cast<uint32_t>(top);
}

Refusal read_chat(const Json& body, const Control& control, const ServeLimits& limits,
                  GenerateRequest& out, std::vector<KnownField>* known) {
  FieldReader reader(body);
  out.endpoint = Endpoint::kChat;
  read_common_fields(reader, control, limits, out);
  read_max_tokens(reader, out);
  read_logprobs(reader, out);
  reader.neutral(
      "modalities",
      [](const Json& value) {
        return value.is_array() && value.size() == 1 && is_text(value[0], "text");
      },
      R"(["text"])");
  reader.neutral(
      "verbosity", [](const Json& value) { return is_text(value, "medium"); }, "\"medium\"");
  for (const std::string_view name : {"audio", "prediction", "web_search_options"}) {
    reader.neutral(
        name, [](const Json&) { return false; }, "null");
  }
  ChatPrompt prompt;
  if (reader.ok()) {
    out.reasoning = reasoning_tags(*out.target.model);
    read_chat_prompt(reader, *out.target.model, out.reasoning, prompt);
  }
  if (known != nullptr) *known = reader.known();
  if (Refusal refusal = reader.finish()) return refusal;

  auto ids = encode_chat(*out.target.model, prompt.rendered);
  if (!ids) return bad_field("messages", ids.error().message());
  check_prompt(reader, "messages", ids->size(), true, *out.target.model, limits);
  out.reasoning_open = prompt.reasoning_open;
  out.tool_format = prompt.tool_format;
  out.tools = std::move(prompt.tools);
  out.prompts.push_back({std::move(*ids), {}});
  return reader.finish();
}

}  // namespace

void read_chat_prompt(FieldReader& reader, const engine::ModelInfo& model,
                      const std::optional<ReasoningTags>& tags, ChatPrompt& out) {
  bool generation_prompt = true;
  bool go_on = false;
  const bool generation_given = reader.take("add_generation_prompt") != nullptr;
  reader.boolean("add_generation_prompt", generation_prompt);
  reader.boolean("continue_final_message", go_on);
  if (go_on && !generation_given) generation_prompt = false;
  if (go_on && generation_prompt) {
    reader.refuse("continue_final_message",
                  "`continue_final_message` and `add_generation_prompt` exclude each other");
  }
  Json variables = Json::object();
  std::string role;
  std::string content;
  Json messages;
  read_messages(reader, model, messages, role, content);
  variables["messages"] = std::move(messages);
  variables["tools"] = nullptr;
  read_tools(reader, model, variables, out);
  read_template_variables(reader, model, variables);
  read_reasoning_effort(reader, model, tags.has_value(), variables);
  if (!reader.ok()) return;
  if (model.chat_template == nullptr) {
    return reader.refuse("messages", "this model has no chat template: use /v1/completions");
  }
  variables["add_generation_prompt"] = generation_prompt;
  variables["bos_token"] = model.bos_text;
  variables["eos_token"] = model.eos_text;
  auto rendered = render_chat(model, variables);
  if (!rendered) return reader.refuse("messages", rendered.error().message());
  out.rendered = std::move(*rendered);
  if (go_on && (role != "assistant" || !cut_behind(content, out.rendered))) {
    return reader.refuse(
        "continue_final_message",
        "`continue_final_message` needs a last message of the assistant, with text "
        "that the chat template prints");
  }
  if (!tags) return;
  out.reasoning_open = go_on ? content.rfind(tags->open_text) != content.npos &&
                                   content.find(tags->close_text) == content.npos
                             : ends_with_open_tag(out.rendered.text, *tags);
}

Refusal read_chat_request(std::string_view body, const Control& control, const ServeLimits& limits,
                          GenerateRequest& out) {
  Json json;
  if (Refusal refusal = parse_json(body, json)) return refusal;
  return read_chat(json, control, limits, out, nullptr);
}

std::vector<KnownField> chat_fields(const Control& control) {
  std::vector<KnownField> known;
  GenerateRequest request;
  const Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "x"}}})}};
  (void)read_chat(body, control, ServeLimits(), request, &known);
  return known;
}

}  // namespace atlas::serve
