// The edge of the interpreter: JSON in, prompt and Status out.
#include "daemon/model/chat_template/chat_template.h"

#include <algorithm>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "daemon/model/chat_template/ast.h"
#include "daemon/model/chat_template/evaluator.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/unicode.h"

namespace atlas::model {
namespace {

using jinja::Runtime;
using jinja::Value;
using Json = nlohmann::ordered_json;

std::string checked_text(const std::string& text) {
  if (!jinja::valid_utf8(text)) jinja::fail("a text of the request is not valid UTF-8");
  return text;
}

/// The value of a JSON document. `plain`: it is request data.
Value value_of(Runtime& runtime, const Json& json, bool plain, uint32_t depth) {
  if (depth > jinja::kMaxValueDepth / 2) {
    jinja::fail_limit("the request nests lists and objects more than {} deep",
                      jinja::kMaxValueDepth / 2);
  }
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>(), plain);
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>(), plain);
    case Json::value_t::number_unsigned:
      return Value::integer(json.get<uint64_t>(), plain);
    case Json::value_t::number_float:
      return Value::real(json.get<double>(), plain);
    case Json::value_t::string:
      return runtime.text(checked_text(json.get_ref<const std::string&>()), plain);
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(value_of(runtime, item, plain, depth + 1));
      return runtime.list(std::move(items), plain);
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      items.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        items.emplace_back(runtime.text(checked_text(key), plain),
                           value_of(runtime, item, plain, depth + 1));
      }
      return runtime.dict(std::move(items), plain);
    }
    case Json::value_t::null:
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  return Value::none(plain);
}

Status status_of(const jinja::Failure& failure, std::string_view name, uint32_t line) {
  if (failure.verbatim) return {failure.code, failure.message};
  if (failure.line != 0) line = failure.line;
  if (line == 0)
    return {failure.code, fmt::format("chat template '{}': {}", name, failure.message)};
  return {failure.code,
          fmt::format("chat template '{}', line {}: {}", name, line, failure.message)};
}

RenderedPrompt prompt_of(const jinja::Text& text) {
  RenderedPrompt prompt;
  prompt.text = text.bytes();
  for (const jinja::ByteRange& range : text.plain_ranges()) {
    prompt.plain_ranges.emplace_back(range.begin, range.end);
  }
  return prompt;
}

}  // namespace

std::vector<RenderedSegment> RenderedPrompt::segments() const {
  std::vector<RenderedSegment> parts;
  size_t done = 0;
  const auto add = [&](size_t end, bool plain) {
    if (end > done) parts.push_back({text.substr(done, end - done), plain});
    done = end;
  };
  for (const auto& [begin, end] : plain_ranges) {
    add(begin, false);
    add(end, true);
  }
  add(text.size(), false);
  return parts;
}

Result<ChatTemplate> ChatTemplate::parse(std::string source, std::string name) {
  if (source.size() > jinja::kMaxSourceBytes) {
    return resource_exhausted("chat template '{}' has {} bytes, the limit is {}", name,
                              source.size(), jinja::kMaxSourceBytes);
  }
  if (!jinja::valid_utf8(source)) {
    return invalid_argument("chat template '{}' is not valid UTF-8", name);
  }
  try {
    auto program = std::make_shared<const jinja::Program>(jinja::parse_program(source));
    return ChatTemplate(std::move(name), std::move(source), std::move(program));
  } catch (const jinja::Failure& failure) {
    return status_of(failure, name, 0);
  }
}

Result<RenderedPrompt> ChatTemplate::render(const Json& variables,
                                            std::span<const std::string> trusted) const {
  if (!variables.is_object()) {
    return invalid_argument("chat template '{}': the variables must be an object, not {}", name_,
                            variables.type_name());
  }
  Runtime runtime;
  try {
    const auto scope = std::make_shared<jinja::Scope>(nullptr);
    for (const auto& [name, value] : variables.items()) {
      const bool plain = std::find(trusted.begin(), trusted.end(), name) == trusted.end();
      scope->names.emplace_back(name, value_of(runtime, value, plain, 0));
    }
    jinja::Evaluator evaluator(runtime);
    return prompt_of(evaluator.render(*program_, *scope));
  } catch (const jinja::Failure& failure) {
    return status_of(failure, name_, runtime.line());
  } catch (const std::bad_alloc&) {
    return resource_exhausted("chat template '{}': out of memory while rendering", name_);
  }
}

bool ChatTemplate::mentions(std::string_view identifier) const {
  return program_->mentions.contains(identifier);
}

}  // namespace atlas::model
