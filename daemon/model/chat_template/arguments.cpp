// Binding of arguments to parameters.
#include "daemon/model/chat_template/arguments.h"

#include <algorithm>

#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"

namespace atlas::model::jinja {

Bound::Bound(const Arguments& arguments, std::string_view function,
             std::initializer_list<std::string_view> parameters, size_t required)
    : function_(function) {
  ATLAS_CHECK(parameters.size() <= kMaxParameters, "a builtin with too many parameters");
  std::copy(parameters.begin(), parameters.end(), names_.begin());
  if (arguments.positional.size() > parameters.size()) {
    fail("{}() takes at most {} arguments ({} given)", function, parameters.size(),
         arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto* const found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      fail("{}() got an unexpected keyword argument '{}'", function, name);
    }
    const auto index = static_cast<size_t>(found - parameters.begin());
    if (values_[index] != nullptr) {
      fail("{}() got multiple values for argument '{}'", function, name);
    }
    values_[index] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      fail("{}() is missing its argument '{}'", function, names_[i]);
    }
  }
}

Value Bound::get(size_t index, const Value& otherwise) const {
  return has(index) ? *values_[index] : otherwise;
}

bool Bound::truth(size_t index) const { return has(index) && truthy(*values_[index]); }

const Text& Bound::text(size_t index) const {
  const Value& value = *values_[index];
  if (!value.is(Kind::kText)) {
    require_defined(value);
    fail("{}() argument '{}' must be str, not {}", function_, names_[index], type_name(value));
  }
  return value.text();
}

int64_t Bound::integer(size_t index, int64_t otherwise) const {
  if (!has(index)) return otherwise;
  return as_index(*values_[index], fmt::format("{}() argument '{}'", function_, names_[index]));
}

}  // namespace atlas::model::jinja
