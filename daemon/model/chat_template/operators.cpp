// Truth, equality, order, membership and arithmetic, as Python does them.
#include <algorithm>
#include <cmath>

#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/text_tools.h"

namespace atlas::model::jinja {
namespace {

bool equal_numbers(const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) return left.as_integer() == right.as_integer();
  return left.as_real() == right.as_real();
}

bool equal_items(Runtime& runtime, const std::vector<Value>& left,
                 const std::vector<Value>& right) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!equal(runtime, left[i], right[i])) return false;
  }
  return true;
}

bool equal_dicts(Runtime& runtime, const DictObject& left, const DictObject& right) {
  if (left.items.size() != right.items.size()) return false;
  for (const auto& [key, value] : left.items) {
    const size_t place = find_key(runtime, right, key);
    if (place == right.items.size()) return false;
    if (!equal(runtime, value, right.items[place].second)) return false;
  }
  return true;
}

bool equal_ranges(const RangeObject& left, const RangeObject& right) {
  if (left.size() != right.size()) return false;
  if (left.size() == 0) return true;
  return left.start == right.start && (left.size() == 1 || left.step == right.step);
}

[[noreturn]] void fail_operands(std::string_view symbol, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  fail("unsupported operand type(s) for {}: '{}' and '{}'", symbol, type_name(left),
       type_name(right));
}

[[noreturn]] void fail_overflow() {
  fail_limit("an integer of more than 128 bits: the interpreter has no larger ones");
}

Value integer_power(Integer base, Integer exponent, bool plain) {
  Integer result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return Value::integer(result, plain);
}

Value integer_arithmetic(Operator op, Integer left, Integer right, bool plain) {
  Integer result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) fail_overflow();
      return Value::integer(result, plain);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) fail_overflow();
      return Value::integer(result, plain);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) fail_overflow();
      return Value::integer(result, plain);
    case Operator::kDivide:
      if (right == 0) fail("division by zero");
      return Value::real(static_cast<double>(left) / static_cast<double>(right), plain);
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (right == 0) {
        fail("{}", op == Operator::kModulo ? "integer modulo by zero"
                                           : "integer division or modulo by zero");
      }
      // -1 apart: the smallest integer has no positive counterpart.
      if (right == -1) {
        if (op == Operator::kModulo) return Value::integer(0, plain);
        if (__builtin_sub_overflow(Integer{0}, left, &result)) fail_overflow();
        return Value::integer(result, plain);
      }
      Integer quotient = left / right;
      Integer remainder = left % right;
      if (remainder != 0 && (remainder < 0) != (right < 0)) {
        quotient -= 1;
        remainder += right;
      }
      return Value::integer(op == Operator::kModulo ? remainder : quotient, plain);
    }
    case Operator::kPower:
      break;
  }
  if (right >= 0) return integer_power(left, right, plain);
  if (left == 0) fail("0.0 cannot be raised to a negative power");
  return Value::real(std::pow(static_cast<double>(left), static_cast<double>(right)), plain);
}

Value real_arithmetic(Operator op, double left, double right, bool plain) {
  switch (op) {
    case Operator::kAdd:
      return Value::real(left + right, plain);
    case Operator::kSubtract:
      return Value::real(left - right, plain);
    case Operator::kMultiply:
      return Value::real(left * right, plain);
    case Operator::kDivide:
      if (right == 0.0) fail("float division by zero");
      return Value::real(left / right, plain);
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (right == 0.0) {
        fail("{}", op == Operator::kModulo ? "float modulo" : "float floor division by zero");
      }
      double remainder = std::fmod(left, right);
      double quotient = (left - remainder) / right;
      if (remainder != 0.0 && (remainder < 0.0) != (right < 0.0)) {
        remainder += right;
        quotient -= 1.0;
      }
      if (remainder == 0.0) remainder = std::copysign(0.0, right);
      if (op == Operator::kModulo) return Value::real(remainder, plain);
      return Value::real(quotient == 0.0 ? std::copysign(0.0, left / right) : std::round(quotient),
                         plain);
    }
    case Operator::kPower:
      break;
  }
  if (left == 0.0 && right < 0.0) fail("0.0 cannot be raised to a negative power");
  if (left < 0.0 && std::floor(right) != right) fail("a power that is a complex number");
  const double result = std::pow(left, right);
  if (std::isinf(result) && std::isfinite(left) && std::isfinite(right)) {
    fail("numerical result out of range");
  }
  return Value::real(result, plain);
}

Value as_markup(Runtime& runtime, const Value& value) {
  if (value.markup()) return value;
  return runtime.text(escaped(value.text())).as_markup();
}

Value add_texts(Runtime& runtime, const Value& left, const Value& right) {
  if (left.markup() != right.markup()) {
    return add_texts(runtime, as_markup(runtime, left), as_markup(runtime, right));
  }
  Text sum = left.text();
  sum.append(right.text());
  const Value result = runtime.text(std::move(sum));
  return left.markup() ? result.as_markup() : result;
}

Value repeat(Runtime& runtime, const Value& value, Integer times) {
  times = std::max(times, Integer{0});
  if (value.is(Kind::kText)) {
    const Text& text = value.text();
    if (text.empty()) return value;
    if (times > static_cast<Integer>(kMaxTextBytes / text.size())) {
      fail_limit("the template makes a text of more than {} MiB", kMaxTextBytes >> 20);
    }
    Text result;
    for (Integer i = 0; i < times; ++i) result.append(text);
    return runtime.text(std::move(result));
  }
  const std::vector<Value>& items = value.items();
  constexpr size_t kMaxItems = kMaxHeldBytes / sizeof(Value);
  if (!items.empty() && times > static_cast<Integer>(kMaxItems / items.size())) {
    fail_limit("the template makes a list of more than {} items", kMaxItems);
  }
  std::vector<Value> result;
  if (!items.empty()) {
    for (Integer i = 0; i < times; ++i) result.insert(result.end(), items.begin(), items.end());
  }
  return value.is(Kind::kList) ? runtime.list(std::move(result)) : runtime.tuple(std::move(result));
}

Value add_others(Runtime& runtime, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  if (left.is(Kind::kText) && right.is(Kind::kText)) return add_texts(runtime, left, right);
  if (left.is_sequence() && left.kind() == right.kind()) {
    std::vector<Value> sum = left.items();
    sum.insert(sum.end(), right.items().begin(), right.items().end());
    return left.is(Kind::kList) ? runtime.list(std::move(sum)) : runtime.tuple(std::move(sum));
  }
  if (left.is(Kind::kText) || left.is_sequence()) {
    fail("can only concatenate {0} (not \"{1}\") to {0}", type_name(left), type_name(right));
  }
  fail_operands("+", left, right);
}

bool less_items(Runtime& runtime, const std::vector<Value>& left, const std::vector<Value>& right,
                std::string_view symbol) {
  const size_t shared = std::min(left.size(), right.size());
  for (size_t i = 0; i < shared; ++i) {
    if (!equal(runtime, left[i], right[i])) return less(runtime, left[i], right[i], symbol);
  }
  return left.size() < right.size();
}

}  // namespace

void require_defined(const Value& value) {
  if (value.is(Kind::kUndefined)) fail("{}", value.undefined_message());
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBoolean:
    case Kind::kInteger:
      return value.as_integer() != 0;
    case Kind::kFloat:
      return value.as_real() != 0.0;
    case Kind::kText:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return !value.dict().items.empty();
    case Kind::kView:
      return !value.view().dict->items.empty();
    case Kind::kRange:
      return value.range().size() > 0;
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kMacro:
    case Kind::kFunction:
      break;
  }
  return true;
}

bool equal(Runtime& runtime, const Value& left, const Value& right) {
  runtime.budget().step();
  if (left.is_number() && right.is_number()) return equal_numbers(left, right);
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      runtime.budget().work(std::min(left.text().size(), right.text().size()));
      return left.text().bytes() == right.text().bytes();
    case Kind::kList:
    case Kind::kTuple:
      return left.object() == right.object() || equal_items(runtime, left.items(), right.items());
    case Kind::kDict:
      return left.object() == right.object() || equal_dicts(runtime, left.dict(), right.dict());
    case Kind::kRange:
      return equal_ranges(left.range(), right.range());
    default:
      return left.object() == right.object();
  }
}

bool less(Runtime& runtime, const Value& left, const Value& right, std::string_view symbol) {
  runtime.budget().step();
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) return left.as_integer() < right.as_integer();
    return left.as_real() < right.as_real();
  }
  if (left.is(Kind::kText) && right.is(Kind::kText)) {
    runtime.budget().work(std::min(left.text().size(), right.text().size()));
    // Byte order of UTF-8 is the order of code points.
    return left.text().bytes() < right.text().bytes();
  }
  if (left.is_sequence() && left.kind() == right.kind()) {
    return less_items(runtime, left.items(), right.items(), symbol);
  }
  require_defined(left);
  require_defined(right);
  fail("'{}' not supported between instances of '{}' and '{}'", symbol, type_name(left),
       type_name(right));
}

void require_hashable(const Value& key) {
  if (key.is(Kind::kTuple)) {
    for (const Value& item : key.items()) require_hashable(item);
  }
  if (key.is(Kind::kList) || key.is(Kind::kDict)) fail("unhashable type: '{}'", type_name(key));
}

size_t find_text_key(Runtime& runtime, const DictObject& dict, std::string_view key) {
  if (!dict.text_places.empty()) {
    runtime.budget().work(key.size());
    const auto found = dict.text_places.find(key);
    return found == dict.text_places.end() ? dict.items.size() : found->second;
  }
  runtime.budget().work(dict.items.size() * sizeof(Value));
  size_t place = 0;
  for (; place < dict.items.size(); ++place) {
    const Value& candidate = dict.items[place].first;
    if (candidate.is(Kind::kText) && candidate.text().bytes() == key) break;
  }
  return place;
}

size_t find_key(Runtime& runtime, const DictObject& dict, const Value& key) {
  if (key.is(Kind::kText)) return find_text_key(runtime, dict, key.text().bytes());
  size_t place = 0;
  while (place < dict.items.size() && !equal(runtime, dict.items[place].first, key)) ++place;
  return place;
}

bool contains(Runtime& runtime, const Value& item, const Value& container) {
  switch (container.kind()) {
    case Kind::kText: {
      if (!item.is(Kind::kText)) {
        require_defined(item);
        fail("'in <string>' requires string as left operand, not {}", type_name(item));
      }
      runtime.budget().work(container.text().size());
      return find_text(container.text().bytes(), item.text().bytes()) != std::string::npos;
    }
    case Kind::kDict:
      require_hashable(item);
      return find_key(runtime, container.dict(), item) < container.dict().items.size();
    case Kind::kUndefined:
      return false;
    default:
      break;
  }
  if (!is_iterable(container)) {
    fail("argument of type '{}' is not iterable", type_name(container));
  }
  if (container.is_sequence()) {
    const std::vector<Value>& items = container.items();
    return std::any_of(items.begin(), items.end(),
                       [&](const Value& candidate) { return equal(runtime, candidate, item); });
  }
  for (const Value& candidate : iterate(runtime, container)) {
    if (equal(runtime, candidate, item)) return true;
  }
  return false;
}

std::string_view symbol_of(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      break;
  }
  return "** or pow()";
}

Value arithmetic(Runtime& runtime, Operator op, const Value& left, const Value& right) {
  const bool plain = left.plain() || right.plain();
  if (left.is_integral() && right.is_integral()) {
    return integer_arithmetic(op, left.as_integer(), right.as_integer(), plain);
  }
  if (left.is_number() && right.is_number()) {
    return real_arithmetic(op, left.as_real(), right.as_real(), plain);
  }
  if (op == Operator::kAdd) return add_others(runtime, left, right);
  if (op == Operator::kMultiply) {
    if ((left.is(Kind::kText) || left.is_sequence()) && right.is_integral()) {
      return repeat(runtime, left, right.as_integer());
    }
    if ((right.is(Kind::kText) || right.is_sequence()) && left.is_integral()) {
      return repeat(runtime, right, left.as_integer());
    }
  }
  if (op == Operator::kModulo && left.is(Kind::kText)) {
    return percent_format(runtime, left, right);
  }
  fail_operands(symbol_of(op), left, right);
}

Value negate(const Value& operand) {
  if (operand.is(Kind::kFloat)) return Value::real(-operand.as_real(), operand.plain());
  if (operand.is_integral()) {
    return integer_arithmetic(Operator::kSubtract, 0, operand.as_integer(), operand.plain());
  }
  require_defined(operand);
  fail("bad operand type for unary -: '{}'", type_name(operand));
}

}  // namespace atlas::model::jinja
