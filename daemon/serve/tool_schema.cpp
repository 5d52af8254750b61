// JSON Schema's types of parameters (json-schema.org, "type", "enum", "anyOf"), and values by them.
#include "daemon/serve/tool_schema.h"

#include <nlohmann/json.hpp>

#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

using Types = ToolSchema::Types;

constexpr int kMaxDepth = 8;  // of anyOf inside of anyOf

Types type_of_name(const Json& name) {
  if (!name.is_string()) return 0;
  const std::string& text = name.get_ref<const std::string&>();
  if (text == "string") return ToolSchema::kString;
  if (text == "number" || text == "integer") return ToolSchema::kNumber;
  if (text == "boolean") return ToolSchema::kBoolean;
  if (text == "null") return ToolSchema::kNull;
  if (text == "object") return ToolSchema::kObject;
  if (text == "array") return ToolSchema::kArray;
  return 0;
}

Types type_of_value(const Json& value) {
  if (value.is_string()) return ToolSchema::kString;
  if (value.is_number()) return ToolSchema::kNumber;
  if (value.is_boolean()) return ToolSchema::kBoolean;
  if (value.is_object()) return ToolSchema::kObject;
  if (value.is_array()) return ToolSchema::kArray;
  return ToolSchema::kNull;
}

const Json* member(const Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

Types types_of_schema(const Json& schema, int depth) {
  Types types = 0;
  if (const Json* type = member(schema, "type")) {
    types |= type_of_name(*type);
    if (type->is_array()) {
      for (const Json& one : *type) types |= type_of_name(one);
    }
  } else if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    for (const Json& value : *values) types |= type_of_value(value);
  } else if (const Json* value = member(schema, "const")) {
    types |= type_of_value(*value);
  }
  if (depth < kMaxDepth) {
    for (const std::string_view choice : {"anyOf", "oneOf", "allOf"}) {
      const Json* schemas = member(schema, choice);
      if (schemas == nullptr || !schemas->is_array()) continue;
      for (const Json& one : *schemas) types |= types_of_schema(one, depth + 1);
    }
  }
  const Json* nullable = member(schema, "nullable");  // OpenAPI 3.0
  if (types != 0 && nullable != nullptr && *nullable == true) types |= ToolSchema::kNull;
  return types;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

// Templates print booleans and nulls of earlier calls as Python does, so models write them so.
std::string_view python_word(std::string_view text, Types types) {
  if (text == "True" && (types & ToolSchema::kBoolean)) return "true";
  if (text == "False" && (types & ToolSchema::kBoolean)) return "false";
  if (text == "None" && (types & ToolSchema::kNull)) return "null";
  return {};
}

// Whether a value whose JSON has the type `found` is meant as JSON.
bool meant_as_json(Types found, Types declared) {
  if (declared == 0) return (found & (ToolSchema::kObject | ToolSchema::kArray)) != 0;
  if ((declared & ToolSchema::kString) == 0) return true;
  return found != ToolSchema::kString && (found & declared) != 0;
}

}  // namespace

ToolSchema::ToolSchema(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* function = member(tool, "function");
    if (function == nullptr) continue;
    const Json* name = member(*function, "name");
    const Json* parameters = member(*function, "parameters");
    if (name == nullptr || !name->is_string() || parameters == nullptr) continue;
    const Json* properties = member(*parameters, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) {
      types_[{name->get<std::string>(), key}] = types_of_schema(schema, 0);
    }
  }
}

Types ToolSchema::types(std::string_view function, std::string_view parameter) const {
  const auto found = types_.find(std::pair<std::string, std::string>(function, parameter));
  return found == types_.end() ? Types{0} : found->second;
}

void ToolSchema::append_value(std::string& out, std::string_view function,
                              std::string_view parameter, std::string_view raw) const {
  const Types declared = types(function, parameter);
  if (declared != kString) {
    const std::string_view text = trimmed(raw);
    if (const std::string_view word = python_word(text, declared); !word.empty()) {
      out += word;
      return;
    }
    Json value;
    if (!parse_json(text, value) && meant_as_json(type_of_value(value), declared)) {
      out += text;
      return;
    }
  }
  append_json_string(out, raw);
}

bool is_json_object(std::string_view text) {
  Json value;
  return !parse_json(text, value) && value.is_object();
}

}  // namespace atlas::serve
