// The messages of a chat: checked one by one and put into the form that chat templates expect.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "daemon/serve/fields.h"
#include "daemon/serve/generate_request.h"
#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

constexpr size_t kMaxMessages = 100'000;

bool never(const Json&) { return false; }

/// Text of a `content` that is a string or a list of text parts (joined by newlines, as peers do).
bool read_content(FieldReader& reader, const Json& content, std::string& out) {
  if (content.is_string()) {
    out = content.get_ref<const std::string&>();
    return true;
  }
  if (!content.is_array()) {
    reader.refuse_type("content", "a string or a list of text parts", content);
    return false;
  }
  if (content.empty()) {
    reader.refuse("content", fmt::format("`{}` is an empty list", reader.full_name("content")));
    return false;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string name = fmt::format("{}[{}].", reader.full_name("content"), i);
    FieldReader part(content[i], name);
    std::string type;
    part.text("type", type);
    if (part.ok() && type != "text") {
      part.refuse("type",
                  fmt::format("`{}type` is \"{}\": this model reads parts of type \"text\" only",
                              name, to_utf8(type.substr(0, 64))));
    }
    std::string text;
    part.text("text", text);
    if (part.ok() && part.take("text") == nullptr) {
      part.refuse("text", fmt::format("`{}text` is missing", name));
    }
    if (Refusal refusal = part.finish()) {
      reader.refuse(std::move(*refusal));
      return false;
    }
    if (i > 0) out += '\n';
    out += text;
  }
  return true;
}

/// One entry of an assistant's `tool_calls`; arguments become an object, as templates expect.
bool read_tool_call(FieldReader& message, const Json& call, size_t index, Json& out) {
  const std::string where = fmt::format("{}[{}].", message.full_name("tool_calls"), index);
  FieldReader reader(call, where);
  std::string id;
  std::string type = "function";
  reader.text("id", id);
  reader.text("type", type);
  reader.inert({"index"});
  if (reader.ok() && type != "function") {
    reader.refuse("type", fmt::format("`{}type` must be \"function\"", where));
  }
  const Json* function = reader.take("function");
  if (reader.ok() && function == nullptr) {
    reader.refuse("function", fmt::format("`{}function` is missing", where));
  }
  std::string name;
  Json arguments = Json::object();
  if (function != nullptr) {
    FieldReader inner(*function, where + "function.");
    inner.text("name", name);
    if (const Json* given = inner.take("arguments")) {
      const bool text = given->is_string();
      if (text && given->get_ref<const std::string&>().empty()) {
        arguments = Json::object();
      } else if (text && parse_json(given->get_ref<const std::string&>(), arguments)) {
        inner.refuse("arguments", fmt::format("`{}function.arguments` is not JSON", where));
      } else if (!text) {
        arguments = *given;
      }
      if (inner.ok() && !arguments.is_object()) {
        inner.refuse_type("arguments", "a JSON object", arguments);
      }
    }
    if (inner.ok() && name.empty()) {
      inner.refuse("name", fmt::format("`{}function.name` is missing", where));
    }
    if (Refusal refusal = inner.finish()) reader.refuse(std::move(*refusal));
  }
  if (Refusal refusal = reader.finish()) {
    message.refuse(std::move(*refusal));
    return false;
  }
  out = {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
  return true;
}

void read_tool_calls(FieldReader& reader, const engine::ModelInfo& model, Json& out) {
  const Json* calls = reader.take("tool_calls");
  if (calls == nullptr) return;
  if (!calls->is_array()) return reader.refuse_type("tool_calls", "a list", *calls);
  if (calls->empty()) return;
  if (!template_mentions(model, "tool_calls")) {
    return reader.refuse("tool_calls", "`" + reader.full_name("tool_calls") +
                                           "`: the chat template of this model has no tool calls");
  }
  Json list = Json::array();
  for (size_t i = 0; i < calls->size(); ++i) {
    Json call;
    if (!read_tool_call(reader, (*calls)[i], i, call)) return;
    list.push_back(std::move(call));
  }
  out["tool_calls"] = std::move(list);
}

void read_assistant_fields(FieldReader& reader, const engine::ModelInfo& model, Json& out) {
  read_tool_calls(reader, model, out);
  std::string reasoning;
  reader.text("reasoning_content", reasoning);
  // Templates that have no place for reasoning drop it, as they would their own from older turns.
  if (!reasoning.empty()) out["reasoning_content"] = reasoning;
  reader.neutral("refusal", never, "null");
  reader.neutral("audio", never, "null");
  reader.neutral("function_call", never, "null");
  reader.neutral(
      "annotations", [](const Json& value) { return value.is_array() && value.empty(); },
      "an empty list");
}

bool known_role(std::string_view role) {
  return role == "system" || role == "developer" || role == "user" || role == "assistant" ||
         role == "tool";
}

void read_message(FieldReader& reader, const engine::ModelInfo& model, Json& out, std::string& role,
                  std::string& content) {
  reader.text("role", role);
  if (reader.ok() && !known_role(role)) {
    return reader.refuse(
        "role", fmt::format("`{}` must be \"system\", \"developer\", \"user\", \"assistant\" or "
                            "\"tool\", not \"{}\"",
                            reader.full_name("role"), to_utf8(role.substr(0, 64))));
  }
  // Templates know the role by its older name.
  out["role"] = role == "developer" ? "system" : role;
  if (const Json* given = reader.take("content")) {
    if (!read_content(reader, *given, content)) return;
  } else if (reader.ok() && role != "assistant") {
    return reader.refuse("content", fmt::format("`{}` is missing", reader.full_name("content")));
  }
  out["content"] = content;
  std::string name;
  reader.text("name", name);
  if (!name.empty()) out["name"] = name;
  if (role == "assistant") read_assistant_fields(reader, model, out);
  if (role == "tool") {
    std::string id;
    reader.text("tool_call_id", id);
    if (!id.empty()) out["tool_call_id"] = id;
  }
}

}  // namespace

void read_messages(FieldReader& reader, const engine::ModelInfo& model, Json& messages,
                   std::string& last_role, std::string& last_content) {
  const Json* list = reader.take("messages");
  if (!reader.ok()) return;
  if (list == nullptr) return reader.refuse("messages", "`messages` is missing");
  if (!list->is_array()) return reader.refuse_type("messages", "a list", *list);
  if (list->empty()) return reader.refuse("messages", "`messages` is an empty list");
  if (list->size() > kMaxMessages) {
    return reader.refuse("messages", fmt::format("`messages` has {} entries, at most {} fit",
                                                 list->size(), kMaxMessages));
  }
  messages = Json::array();
  for (size_t i = 0; i < list->size(); ++i) {
    FieldReader message((*list)[i], fmt::format("messages[{}].", i));
    Json rendered = Json::object();
    last_role.clear();
    last_content.clear();
    read_message(message, model, rendered, last_role, last_content);
    if (Refusal refusal = message.finish()) return reader.refuse(std::move(*refusal));
    messages.push_back(std::move(rendered));
  }
}

}  // namespace atlas::serve
