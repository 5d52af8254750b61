// Reading fields with their types and ranges, and the refusal of what nobody honours.
#include "daemon/serve/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/base/nearest_name.h"
#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

// Keys are the client's: no longer than this in messages.
constexpr size_t kShownBytes = 64;

std::string shown(std::string_view text) {
  return to_utf8(text.substr(0, kShownBytes)) + (text.size() > kShownBytes ? "..." : "");
}

}  // namespace

FieldReader::FieldReader(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object.is_object()) {
    refuse(ApiError{.message = fmt::format("{} must be an object, not {}",
                                           where_.empty() ? "the body" : where_, type_word(object)),
                    .param = where_,
                    .code = "invalid_value"});
  }
}

const Json* FieldReader::find(std::string_view name) const {
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json* FieldReader::take(std::string_view name) {
  known_.push_back({std::string(name), KnownField::kHonoured});
  return refusal_ ? nullptr : find(name);
}

void FieldReader::boolean(std::string_view name, bool& out) {
  const Json* value = take(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return refuse_type(name, "true or false", *value);
  out = value->get<bool>();
}

void FieldReader::text(std::string_view name, std::string& out) {
  const Json* value = take(name);
  if (value == nullptr) return;
  if (!value->is_string()) return refuse_type(name, "a string", *value);
  out = value->get_ref<const std::string&>();
}

void FieldReader::number(std::string_view name, double low, double high, float& out) {
  const Json* value = take(name);
  if (value == nullptr) return;
  if (!value->is_number()) return refuse_type(name, "a number", *value);
  const double number = value->get<double>();
  // Written so that a NaN is refused too.
  if (!(number >= low && number <= high)) {
    return refuse(
        name, fmt::format("`{}` must be in {}..{}, not {}", full_name(name), low, high, number));
  }
  out = static_cast<float>(number);
}

bool FieldReader::integer(std::string_view name, int64_t low, int64_t high, int64_t& out) {
  const Json* value = take(name);
  if (value == nullptr) return false;
  // 2^63 is the first double beyond int64_t.
  constexpr double kBeyond = 9223372036854775808.0;
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    const auto given = value->get<uint64_t>();
    if (given > INT64_MAX) {
      refuse(name,
             fmt::format("`{}` must be in {}..{}, not {}", full_name(name), low, high, given));
      return false;
    }
    number = static_cast<int64_t>(given);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float()) {
    const double given = value->get<double>();
    // JSON's integers below -2^63 arrive as this double too, so it stands for nothing exact.
    if (given >= kBeyond || given <= -kBeyond) {
      refuse(name,
             fmt::format("`{}` must be in {}..{}, not {}", full_name(name), low, high, given));
      return false;
    }
    if (given != std::floor(given)) {
      refuse(name, fmt::format("`{}` must be an integer, not {}", full_name(name), given));
      return false;
    }
    number = static_cast<int64_t>(given);
  } else {
    refuse_type(name, "an integer", *value);
    return false;
  }
  if (number < low || number > high) {
    refuse(name, fmt::format("`{}` must be in {}..{}, not {}", full_name(name), low, high, number));
    return false;
  }
  out = number;
  return true;
}

void FieldReader::neutral(std::string_view name, const std::function<bool(const Json&)>& fine,
                          std::string_view good) {
  known_.push_back({std::string(name), KnownField::kNeutral});
  if (refusal_) return;
  const Json* value = find(name);
  if (value == nullptr || fine(*value)) return;
  refuse(ApiError{.message = fmt::format("`{}` is not supported here: leave it out or send {}",
                                         full_name(name), good),
                  .param = full_name(name),
                  .code = "unsupported_value"});
}

void FieldReader::inert(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    known_.push_back({std::string(name), KnownField::kInert});
}

void FieldReader::refuse_type(std::string_view name, std::string_view wanted, const Json& found) {
  refuse(name, fmt::format("`{}` must be {}, not {}", full_name(name), wanted, type_word(found)));
}

void FieldReader::refuse(std::string_view name, std::string message) {
  refuse(bad_field(full_name(name), std::move(message)));
}

void FieldReader::refuse(ApiError error) {
  if (!refusal_) refusal_ = std::move(error);
}

Refusal FieldReader::finish() {
  if (refusal_) return refusal_;
  for (const auto& [key, value] : object_.items()) {
    const auto same = [&](const KnownField& known) { return known.name == key; };
    if (std::any_of(known_.begin(), known_.end(), same)) continue;
    std::vector<std::string_view> names;
    for (const KnownField& known : known_) names.push_back(known.name);
    const std::string_view nearest = nearest_name(key, names);
    std::string message =
        fmt::format("`{}` is no field that this route honours", where_ + shown(key));
    if (!nearest.empty()) message += fmt::format("; is `{}` meant?", full_name(nearest));
    return ApiError{
        .message = std::move(message), .param = where_ + shown(key), .code = "unknown_field"};
  }
  return std::nullopt;
}

}  // namespace atlas::serve
