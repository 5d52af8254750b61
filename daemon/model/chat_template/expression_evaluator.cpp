// Expressions: names, access, calls, filters, tests, operators, literals.
#include "daemon/model/chat_template/evaluator.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"

namespace atlas::model::jinja {

Value Evaluator::evaluate(const Expression& expression, Scope& scope) {
  const Depth depth(*this);
  runtime_.at(expression.line);
  runtime_.budget().step();
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return name(expression, scope);
    case ExpressionKind::kAttribute: {
      const Value object = evaluate(*expression.items[0], scope);
      runtime_.at(expression.line);
      return get_attribute(runtime_, object, expression.name);
    }
    case ExpressionKind::kItem: {
      const Value object = evaluate(*expression.items[0], scope);
      const Value key = evaluate(*expression.items[1], scope);
      runtime_.at(expression.line);
      return get_item(runtime_, object, key);
    }
    case ExpressionKind::kSlice:
      return slice(expression, scope);
    case ExpressionKind::kCall:
      return call(expression, scope);
    case ExpressionKind::kFilter:
      return filter(expression, evaluate(*expression.items[0], scope), scope);
    case ExpressionKind::kTest:
      return test(expression, scope);
    case ExpressionKind::kNot:
      return Value::boolean(!truthy(evaluate(*expression.items[0], scope)));
    case ExpressionKind::kNegate:
      return negate(evaluate(*expression.items[0], scope));
    case ExpressionKind::kPlus:
      return negate(negate(evaluate(*expression.items[0], scope)));
    case ExpressionKind::kBinary:
      return binary(expression, scope);
    case ExpressionKind::kConcat:
      return concat(expression, scope);
    case ExpressionKind::kCompare:
      return compare(expression, scope);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      Value left = evaluate(*expression.items[0], scope);
      if (truthy(left) == (expression.kind == ExpressionKind::kOr)) return left;
      return evaluate(*expression.items[1], scope);
    }
    case ExpressionKind::kCondition:
      return condition(expression, scope);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return collection(expression, scope);
    case ExpressionKind::kDict:
      return dict(expression, scope);
  }
  fail("an expression of an unknown kind");
}

Value Evaluator::name(const Expression& expression, const Scope& scope) {
  if (const Value* value = scope.find(expression.name)) return *value;
  if (const Function* function = find_function(expression.name)) {
    return runtime_.function(function->name, function->call, Value());
  }
  return Value::undefined(fmt::format("'{}' is undefined", expression.name));
}

Value Evaluator::slice(const Expression& expression, Scope& scope) {
  const Value object = evaluate(*expression.items[0], scope);
  const auto part = [&](size_t index) {
    const ExpressionPtr& written = expression.items[index];
    return written ? evaluate(*written, scope) : Value::none();
  };
  const Value start = part(1);
  const Value stop = part(2);
  const Value step = part(3);
  runtime_.at(expression.line);
  return get_slice(runtime_, object, start, stop, step);
}

Arguments Evaluator::arguments(const CallArguments& written, Scope& scope) {
  Arguments result;
  result.positional.reserve(written.positional.size());
  for (const ExpressionPtr& argument : written.positional) {
    result.positional.push_back(evaluate(*argument, scope));
  }
  for (const auto& [name, argument] : written.keywords) {
    result.keywords.emplace_back(name, evaluate(*argument, scope));
  }
  if (written.spread) {
    for (Value& item : iterate(runtime_, evaluate(*written.spread, scope))) {
      result.positional.push_back(std::move(item));
    }
  }
  if (written.spread_keywords) {
    const Value more = evaluate(*written.spread_keywords, scope);
    if (!more.is(Kind::kDict))
      fail("the argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [key, value] : more.dict().items) {
      if (!key.is(Kind::kText)) fail("keywords must be strings");
      result.keywords.emplace_back(key.text().bytes(), value);
    }
  }
  return result;
}

Value Evaluator::call(const Expression& expression, Scope& scope) {
  const Value callee = evaluate(*expression.items[0], scope);
  const Arguments given = arguments(expression.arguments, scope);
  runtime_.at(expression.line);
  if (callee.is(Kind::kFunction)) {
    const FunctionObject& function = callee.function();
    return function.callee(runtime_, function.self, given);
  }
  if (callee.is(Kind::kMacro)) {
    return call_macro(static_cast<const MacroObject&>(*callee.object()), given);
  }
  require_defined(callee);
  fail("'{}' object is not callable", type_name(callee));
}

Value Evaluator::filter(const Expression& expression, const Value& input, Scope& scope) {
  const Arguments given = arguments(expression.arguments, scope);
  runtime_.at(expression.line);
  return expression.filter->apply(runtime_, input, given);
}

Value Evaluator::filter_chain(const Expression& expression, const Value& input, Scope& scope) {
  const ExpressionPtr& inner = expression.items[0];
  return filter(expression, inner ? filter_chain(*inner, input, scope) : input, scope);
}

Value Evaluator::test(const Expression& expression, Scope& scope) {
  const Value value = evaluate(*expression.items[0], scope);
  const Arguments given = arguments(expression.arguments, scope);
  runtime_.at(expression.line);
  return Value::boolean(expression.test->holds(runtime_, value, given));
}

Value Evaluator::binary(const Expression& expression, Scope& scope) {
  const Value left = evaluate(*expression.items[0], scope);
  const Value right = evaluate(*expression.items[1], scope);
  runtime_.at(expression.line);
  return arithmetic(runtime_, expression.op, left, right);
}

Value Evaluator::concat(const Expression& expression, Scope& scope) {
  Text text;
  for (const ExpressionPtr& part : expression.items) {
    const Value value = evaluate(*part, scope);
    runtime_.at(expression.line);
    if (value.is(Kind::kText)) {
      text.append(value.text());
    } else {
      text.append(to_text(runtime_, value));
    }
    if (text.size() > kMaxTextBytes) {
      fail_limit("the template makes a text of more than {} MiB", kMaxTextBytes >> 20);
    }
  }
  return runtime_.text(std::move(text));
}

bool Evaluator::holds(Comparison comparison, const Value& left, const Value& right) {
  switch (comparison) {
    case Comparison::kEqual:
      return equal(runtime_, left, right);
    case Comparison::kNotEqual:
      return !equal(runtime_, left, right);
    case Comparison::kLess:
      return less(runtime_, left, right);
    case Comparison::kLessEqual:
      return less(runtime_, left, right, "<=") || equal(runtime_, left, right);
    case Comparison::kGreater:
      return less(runtime_, right, left, ">");
    case Comparison::kGreaterEqual:
      return less(runtime_, right, left, ">=") || equal(runtime_, left, right);
    case Comparison::kIn:
      return contains(runtime_, left, right);
    case Comparison::kNotIn:
      break;
  }
  return !contains(runtime_, left, right);
}

Value Evaluator::compare(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.items[0], scope);
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    Value right = evaluate(*expression.items[i + 1], scope);
    runtime_.at(expression.line);
    if (!holds(expression.comparisons[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Evaluator::condition(const Expression& expression, Scope& scope) {
  if (truthy(evaluate(*expression.items[0], scope))) return evaluate(*expression.items[1], scope);
  if (expression.items.size() > 2) return evaluate(*expression.items[2], scope);
  return Value::undefined(
      fmt::format("the inline if-expression on line {} evaluated to false and no else section was "
                  "defined.",
                  expression.line));
}

Value Evaluator::collection(const Expression& expression, Scope& scope) {
  std::vector<Value> items;
  items.reserve(expression.items.size());
  for (const ExpressionPtr& item : expression.items) items.push_back(evaluate(*item, scope));
  return expression.kind == ExpressionKind::kList ? runtime_.list(std::move(items))
                                                  : runtime_.tuple(std::move(items));
}

Value Evaluator::dict(const Expression& expression, Scope& scope) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i + 1 < expression.items.size(); i += 2) {
    Value key = evaluate(*expression.items[i], scope);
    Value value = evaluate(*expression.items[i + 1], scope);
    items.emplace_back(std::move(key), std::move(value));
  }
  runtime_.at(expression.line);
  return runtime_.dict(std::move(items));
}

}  // namespace atlas::model::jinja
