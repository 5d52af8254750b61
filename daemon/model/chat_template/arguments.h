// The arguments of a call, and how they meet the parameters of a builtin.
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/model/chat_template/value.h"

namespace atlas::model::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

/// Arguments in the order of a builtin's parameters.
class Bound {
 public:
  /// Fails, in the name of `function`, for too many, unknown, doubled or missing arguments; the
  /// first `required` parameters have to be there.
  Bound(const Arguments& arguments, std::string_view function,
        std::initializer_list<std::string_view> parameters, size_t required);

  bool has(size_t index) const { return values_[index] != nullptr; }
  const Value& operator[](size_t index) const { return *values_[index]; }
  /// The value, or `otherwise` where it was not given.
  Value get(size_t index, const Value& otherwise) const;
  /// Truth of the value; false where it was not given.
  bool truth(size_t index) const;
  /// The text of the value; fails for other types.
  const Text& text(size_t index) const;
  /// An integer, clamped to 64 bits; `otherwise` where it was not given.
  int64_t integer(size_t index, int64_t otherwise) const;

 private:
  static constexpr size_t kMaxParameters = 6;
  std::string function_;
  std::array<std::string_view, kMaxParameters> names_{};
  std::array<const Value*, kMaxParameters> values_{};
};

}  // namespace atlas::model::jinja
