// A SAX reader over nlohmann's parser: it builds the document and refuses what a DOM would hide.
#include "daemon/serve/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = 1'000'000;
constexpr size_t kFewKeys = 16;  // up to here a linear search beats hashing

class StrictReader : public nlohmann::json_sax<Json> {
 public:
  explicit StrictReader(Json& root) : root_(root) {}

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    Level& level = levels_.back();
    if (seen(level, value)) return refuse(fmt::format("the key \"{}\" stands twice", value));
    level.key = std::move(value);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text begins with its own exception name in brackets.
    std::string_view text = error.what();
    if (const size_t bracket = text.find("] "); bracket != text.npos)
      text.remove_prefix(bracket + 2);
    return refuse(fmt::format("at byte {}: {}", position, text));
  }

  const std::string& failure() const { return failure_; }

 private:
  struct Level {
    Json* container;
    std::string key;
    std::unordered_set<std::string> keys;  // of an object with more than kFewKeys
  };

  static Json::object_t& members(Level& level) {
    return level.container->get_ref<Json::object_t&>();
  }

  static bool seen(Level& level, const std::string& key) {
    const Json::object_t& object = members(level);
    if (object.size() < kFewKeys) {
      for (const auto& [name, value] : object) {
        if (name == key) return true;
      }
      return false;
    }
    if (level.keys.empty()) {
      for (const auto& [name, value] : object) level.keys.insert(name);
    }
    return !level.keys.insert(key).second;
  }

  // Where the value now is; null if it was refused.
  Json* place(Json&& value) {
    if (++values_ > kMaxValues) {
      refuse(fmt::format("more than {} values", kMaxValues));
      return nullptr;
    }
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.container->is_array()) {
      level.container->push_back(std::move(value));
      return &level.container->back();
    }
    // ordered_map's own insertion searches all keys again; `seen` did that already.
    Json::object_t& object = members(level);
    object.Json::object_t::Container::emplace_back(std::move(level.key), std::move(value));
    return &object.back().second;
  }

  bool add(Json&& value) { return place(std::move(value)) != nullptr; }

  bool open(Json&& container) {
    if (levels_.size() >= kMaxDepth) {
      return refuse(fmt::format("lists and objects nest deeper than {}", kMaxDepth));
    }
    Json* placed = place(std::move(container));
    if (placed == nullptr) return false;
    levels_.push_back({placed, {}, {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  bool refuse(std::string why) {
    if (failure_.empty()) failure_ = std::move(why);
    return false;
  }

  Json& root_;
  std::vector<Level> levels_;
  size_t values_ = 0;
  std::string failure_;
};

}  // namespace

Refusal parse_json(std::string_view text, Json& out) {
  StrictReader reader(out);
  bool read = false;
  std::string failure;
  try {
    read = Json::sax_parse(text.begin(), text.end(), &reader);
    failure = reader.failure();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (read) return std::nullopt;
  return ApiError{.message = "the body is not the JSON that this route reads: " + to_utf8(failure),
                  .code = "invalid_json"};
}

std::string_view type_word(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  return "nothing";
}

}  // namespace atlas::serve
