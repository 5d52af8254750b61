// What may stand behind `is`.
#include <algorithm>
#include <cmath>

#include "daemon/model/chat_template/builtins.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/unicode.h"

namespace atlas::model::jinja {
namespace {

template <Kind kind>
bool is_kind(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "a test", {}, 0);
  return value.is(kind);
}

bool defined(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "defined", {}, 0);
  return !value.is(Kind::kUndefined);
}

template <bool wanted>
bool is_boolean(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "true", {}, 0);
  return value.is(Kind::kBoolean) && value.as_boolean() == wanted;
}

bool number(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "number", {}, 0);
  return value.is_number();
}

bool iterable(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "iterable", {}, 0);
  return is_iterable(value) || value.is(Kind::kLoop);
}

/// Has a length and can be subscribed; dicts and undefined values do.
bool sequence(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "sequence", {}, 0);
  return value.is(Kind::kText) || value.is_sequence() || value.is(Kind::kDict) ||
         value.is(Kind::kRange) || value.is(Kind::kUndefined);
}

bool callable(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "callable", {}, 0);
  return value.is(Kind::kMacro) || value.is(Kind::kFunction) || value.is(Kind::kUndefined) ||
         value.is(Kind::kLoop);
}

bool divides(Runtime& runtime, const Value& value, const Value& by) {
  return equal(runtime, arithmetic(runtime, Operator::kModulo, value, by), Value::integer(0));
}

bool even(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "even", {}, 0);
  return divides(runtime, value, Value::integer(2));
}

bool odd(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "odd", {}, 0);
  const Value rest = arithmetic(runtime, Operator::kModulo, value, Value::integer(2));
  return equal(runtime, rest, Value::integer(1));
}

bool divisible_by(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "divisibleby", {"num"}, 1);
  return divides(runtime, value, bound[0]);
}

bool equal_to(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "eq", {"other"}, 1);
  return equal(runtime, value, bound[0]);
}

bool not_equal_to(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return !equal_to(runtime, value, arguments);
}

bool less_than(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "lt", {"other"}, 1);
  return less(runtime, value, bound[0]);
}

bool less_or_equal(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "le", {"other"}, 1);
  return less(runtime, value, bound[0], "<=") || equal(runtime, value, bound[0]);
}

bool greater_than(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "gt", {"other"}, 1);
  return less(runtime, bound[0], value, ">");
}

bool greater_or_equal(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "ge", {"other"}, 1);
  return less(runtime, bound[0], value, ">=") || equal(runtime, value, bound[0]);
}

bool in(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "in", {"seq"}, 1);
  return contains(runtime, value, bound[0]);
}

bool same_as(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "sameas", {"other"}, 1);
  if (value.kind() != bound[0].kind()) return false;
  if (value.object()) return value.object() == bound[0].object();
  return equal(runtime, value, bound[0]);
}

template <bool (*matches)(char32_t), bool (*differs)(char32_t)>
bool in_case(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "lower", {}, 0);
  const Text text = to_text(runtime, value);
  bool any = false;
  for (size_t position = 0; position < text.size();) {
    const char32_t c = next_code_point(text.bytes(), position);
    if (differs(c)) return false;
    any = any || matches(c);
  }
  return any;
}

bool escaped_test(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "escaped", {}, 0);
  return value.markup();
}

bool filter_exists(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "filter", {}, 0);
  return value.is(Kind::kText) && find_filter(value.text().bytes()) != nullptr;
}

bool test_exists(Runtime&, const Value& value, const Arguments& arguments) {
  const Bound bound(arguments, "test", {}, 0);
  return value.is(Kind::kText) && find_test(value.text().bytes()) != nullptr;
}

constexpr Test kTests[] = {
    {"!=", not_equal_to},
    {"<", less_than},
    {"<=", less_or_equal},
    {"==", equal_to},
    {">", greater_than},
    {">=", greater_or_equal},
    {"boolean", is_kind<Kind::kBoolean>},
    {"callable", callable},
    {"defined", defined},
    {"divisibleby", divisible_by},
    {"eq", equal_to},
    {"equalto", equal_to},
    {"escaped", escaped_test},
    {"even", even},
    {"false", is_boolean<false>},
    {"filter", filter_exists},
    {"float", is_kind<Kind::kFloat>},
    {"ge", greater_or_equal},
    {"greaterthan", greater_than},
    {"gt", greater_than},
    {"in", in},
    {"integer", is_kind<Kind::kInteger>},
    {"iterable", iterable},
    {"le", less_or_equal},
    {"lessthan", less_than},
    {"lower", in_case<is_lower, is_upper>},
    {"lt", less_than},
    {"mapping", is_kind<Kind::kDict>},
    {"ne", not_equal_to},
    {"none", is_kind<Kind::kNone>},
    {"number", number},
    {"odd", odd},
    {"sameas", same_as},
    {"sequence", sequence},
    {"string", is_kind<Kind::kText>},
    {"test", test_exists},
    {"true", is_boolean<true>},
    {"undefined", is_kind<Kind::kUndefined>},
    {"upper", in_case<is_upper, is_lower>},
};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTests), std::end(kTests),
                                         [name](const Test& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

std::string test_names() {
  std::string names;
  for (const Test& test : kTests) {
    const bool word = test.name.front() >= 'a' && test.name.front() <= 'z';
    if (word) names += fmt::format("{}{}", names.empty() ? "" : ", ", test.name);
  }
  return names;
}

}  // namespace atlas::model::jinja
