// Every message names the file, the key, what was found and what is expected.
#include "daemon/model/checkpoint/json_object.h"

#include "daemon/model/checkpoint/json_events.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {

using nlohmann::json;

const json* ObjectReader::find(std::string_view key) const {
  const auto place = object_.find(key);
  return place != object_.end() && !place->is_null() ? &*place : nullptr;
}

void ObjectReader::wrong(std::string_view key, std::string_view expected) {
  constexpr auto kReplace = json::error_handler_t::replace;
  const json* found = find(key);
  if (!status_.ok()) return;
  status_ = found == nullptr
                ? invalid_argument("{}: key '{}' is missing; expected {}", path_, key, expected)
                : invalid_argument("{}: key '{}' is {}; expected {}", path_, key,
                                   printable(found->dump(-1, ' ', true, kReplace)), expected);
}

uint64_t ObjectReader::integer(std::string_view key, std::optional<uint64_t> fallback, uint64_t min,
                               uint64_t max) {
  const json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr || !value->is_number_unsigned() || value->get<uint64_t>() > max ||
      value->get<uint64_t>() < min) {
    wrong(key, min == 0 ? fmt::format("a whole number up to {}", max)
                        : fmt::format("a whole number from {} to {}", min, max));
    return min;
  }
  return value->get<uint64_t>();
}

double ObjectReader::number(std::string_view key, std::optional<double> fallback) {
  const json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr || !value->is_number()) {
    wrong(key, "a number");
    return 0;
  }
  return value->get<double>();
}

bool ObjectReader::boolean(std::string_view key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    wrong(key, "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string ObjectReader::text(std::string_view key, std::string_view fallback) {
  const json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) {
    wrong(key, "a string");
    return std::string(fallback);
  }
  return value->get<std::string>();
}

std::vector<uint32_t> ObjectReader::ids(std::string_view key) {
  const json* value = find(key);
  std::vector<uint32_t> out;
  if (value == nullptr) return out;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      wrong(key, "a token id or a list of them");
      return {};
    }
    out.push_back(static_cast<uint32_t>(id.get<uint64_t>()));
  }
  return out;
}

std::optional<std::vector<std::string>> ObjectReader::texts(std::string_view key) {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> out;
  if (!value->is_array()) wrong(key, "a list of names");
  if (!status_.ok()) return out;
  for (const json& one : *value) {
    if (!one.is_string()) {
      wrong(key, "a list of names");
      return out;
    }
    out.push_back(one.get<std::string>());
  }
  return out;
}

Result<json> parse_json_object(std::string_view text, const std::string& path) {
  auto tree = parse_json_tree(text);
  if (!tree) return tree.error().with_context(path);
  if (!tree->is_object()) return invalid_argument("{}: expected a JSON object", path);
  return tree;
}

}  // namespace atlas::model
