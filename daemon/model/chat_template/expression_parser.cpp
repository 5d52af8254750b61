// Expressions of a template, with Jinja's own order of operators.
#include <algorithm>

#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/parser.h"

namespace atlas::model::jinja {
namespace {

/// Filters whose arguments name attributes: "attribute" of map and join, the first of selectattr.
bool reads_attributes(std::string_view filter) {
  return filter == "map" || filter == "selectattr" || filter == "rejectattr" || filter == "join" ||
         filter == "sort" || filter == "unique" || filter == "sum" || filter == "min" ||
         filter == "max";
}

}  // namespace

ExpressionPtr Parser::make(ExpressionKind kind, uint32_t line) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line;
  return made;
}

ExpressionPtr Parser::make(ExpressionKind kind, uint32_t line, ExpressionPtr first,
                           ExpressionPtr second, ExpressionPtr third) {
  ExpressionPtr made = make(kind, line);
  made->items.push_back(std::move(first));
  if (second) made->items.push_back(std::move(second));
  if (third) made->items.push_back(std::move(third));
  return finished(std::move(made));
}

ExpressionPtr Parser::constant(Value value, uint32_t line) {
  ExpressionPtr made = make(ExpressionKind::kConstant, line);
  made->constant = std::move(value);
  return made;
}

ExpressionPtr Parser::finished(ExpressionPtr expression) {
  const auto over = [&expression](const ExpressionPtr& part) {
    if (part) expression->height = std::max(expression->height, part->height + 1);
  };
  for (const ExpressionPtr& item : expression->items) over(item);
  for (const ExpressionPtr& argument : expression->arguments.positional) over(argument);
  for (const auto& [name, argument] : expression->arguments.keywords) over(argument);
  over(expression->arguments.spread);
  over(expression->arguments.spread_keywords);
  if (expression->height > kMaxTreeHeight) {
    fail_at(expression->line, "an expression of more than {} levels", kMaxTreeHeight);
  }
  note_mentions(*expression);
  return expression;
}

void Parser::mention_constant(const Expression* expression) {
  if (expression == nullptr || expression->kind != ExpressionKind::kConstant ||
      !expression->constant.is(Kind::kText)) {
    return;
  }
  // "a.b" as the attribute of a filter reads both.
  std::string_view path = expression->constant.text().bytes();
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    program_.mentions.emplace(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
}

void Parser::note_mentions(const Expression& expression) {
  const auto& positional = expression.arguments.positional;
  switch (expression.kind) {
    case ExpressionKind::kName:
    case ExpressionKind::kAttribute:
      program_.mentions.insert(expression.name);
      break;
    case ExpressionKind::kItem:
      mention_constant(expression.items[1].get());
      break;
    case ExpressionKind::kCompare:
      for (size_t i = 0; i < expression.comparisons.size(); ++i) {
        const Comparison comparison = expression.comparisons[i];
        if (comparison == Comparison::kIn || comparison == Comparison::kNotIn) {
          mention_constant(expression.items[i].get());
        }
      }
      break;
    case ExpressionKind::kCall:
      if (expression.items[0]->kind == ExpressionKind::kAttribute &&
          expression.items[0]->name == "get" && !positional.empty()) {
        mention_constant(positional[0].get());
      }
      break;
    case ExpressionKind::kFilter:
      if (!reads_attributes(expression.filter->name)) break;
      if (!positional.empty()) mention_constant(positional[0].get());
      for (const auto& [name, value] : expression.arguments.keywords) {
        if (name == "attribute") mention_constant(value.get());
      }
      break;
    default:
      break;
  }
}

ExpressionPtr Parser::tuple_or_expression(bool with_condition, bool in_parentheses) {
  const uint32_t line = current().line;
  const auto at_end = [this] {
    const Token& token = current();
    return token.kind == TokenKind::kPrintEnd || token.kind == TokenKind::kTagEnd ||
           token.is_operator(")") || token.is_name("recursive");
  };
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (!at_end()) {
    items.push_back(expression(with_condition));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (items.empty() && !in_parentheses) {
    fail_at(line, "expected an expression, found {}", described(current()));
  }
  ExpressionPtr tuple = make(ExpressionKind::kTuple, line);
  tuple->items = std::move(items);
  return finished(std::move(tuple));
}

ExpressionPtr Parser::expression(bool with_condition) {
  const Nesting nesting(*this);
  return with_condition ? condition() : logical_or();
}

ExpressionPtr Parser::condition() {
  ExpressionPtr result = logical_or();
  while (current().is_name("if")) {
    const uint32_t line = take().line;
    ExpressionPtr test = logical_or();
    ExpressionPtr otherwise;
    if (skip_name("else")) {
      const Nesting nesting(*this);
      otherwise = condition();
    }
    result = make(ExpressionKind::kCondition, line, std::move(test), std::move(result),
                  std::move(otherwise));
  }
  return result;
}

ExpressionPtr Parser::logical_or() {
  ExpressionPtr left = logical_and();
  while (current().is_name("or")) {
    const uint32_t line = take().line;
    left = make(ExpressionKind::kOr, line, std::move(left), logical_and());
  }
  return left;
}

ExpressionPtr Parser::logical_and() {
  ExpressionPtr left = logical_not();
  while (current().is_name("and")) {
    const uint32_t line = take().line;
    left = make(ExpressionKind::kAnd, line, std::move(left), logical_not());
  }
  return left;
}

ExpressionPtr Parser::logical_not() {
  if (!current().is_name("not")) return comparison();
  const Nesting nesting(*this);
  const uint32_t line = take().line;
  return make(ExpressionKind::kNot, line, logical_not());
}

ExpressionPtr Parser::comparison() {
  static constexpr std::pair<std::string_view, Comparison> kSymbols[] = {
      {"==", Comparison::kEqual},  {"!=", Comparison::kNotEqual},
      {"<", Comparison::kLess},    {"<=", Comparison::kLessEqual},
      {">", Comparison::kGreater}, {">=", Comparison::kGreaterEqual}};
  ExpressionPtr first = sum();
  ExpressionPtr chain;
  const auto add = [&](Comparison comparison, uint32_t line) {
    if (!chain) {
      chain = make(ExpressionKind::kCompare, line);
      chain->items.push_back(std::move(first));
    }
    chain->comparisons.push_back(comparison);
    chain->items.push_back(sum());
  };
  for (;;) {
    const Token& token = current();
    const uint32_t line = token.line;
    const auto* const symbol =
        std::find_if(std::begin(kSymbols), std::end(kSymbols),
                     [&token](const auto& entry) { return token.is_operator(entry.first); });
    if (symbol != std::end(kSymbols)) {
      take();
      add(symbol->second, line);
    } else if (skip_name("in")) {
      add(Comparison::kIn, line);
    } else if (token.is_name("not") && ahead().is_name("in")) {
      take();
      take();
      add(Comparison::kNotIn, line);
    } else {
      return chain ? finished(std::move(chain)) : std::move(first);
    }
  }
}

ExpressionPtr Parser::sum() {
  ExpressionPtr left = concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    const Token& token = take();
    left = make(ExpressionKind::kBinary, token.line, std::move(left), concat());
    left->op = token.text == "+" ? Operator::kAdd : Operator::kSubtract;
  }
  return left;
}

ExpressionPtr Parser::concat() {
  ExpressionPtr first = product();
  if (!current().is_operator("~")) return first;
  ExpressionPtr parts = make(ExpressionKind::kConcat, current().line);
  parts->items.push_back(std::move(first));
  while (skip_operator("~")) parts->items.push_back(product());
  return finished(std::move(parts));
}

ExpressionPtr Parser::product() {
  static constexpr std::pair<std::string_view, Operator> kSymbols[] = {
      {"*", Operator::kMultiply},
      {"/", Operator::kDivide},
      {"//", Operator::kFloorDivide},
      {"%", Operator::kModulo}};
  ExpressionPtr left = power();
  for (;;) {
    const Token& token = current();
    const auto* const symbol =
        std::find_if(std::begin(kSymbols), std::end(kSymbols),
                     [&token](const auto& entry) { return token.is_operator(entry.first); });
    if (symbol == std::end(kSymbols)) return left;
    take();
    left = make(ExpressionKind::kBinary, token.line, std::move(left), power());
    left->op = symbol->second;
  }
}

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary();
  while (current().is_operator("**")) {
    const uint32_t line = take().line;
    left = make(ExpressionKind::kBinary, line, std::move(left), unary());
    left->op = Operator::kPower;
  }
  return left;
}

ExpressionPtr Parser::unary(bool with_filters) {
  ExpressionPtr result;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Nesting nesting(*this);
    const Token& token = take();
    result = make(token.text == "-" ? ExpressionKind::kNegate : ExpressionKind::kPlus, token.line,
                  unary(false));
  } else {
    result = primary();
  }
  result = postfix(std::move(result));
  return with_filters ? filters(std::move(result)) : std::move(result);
}

ExpressionPtr Parser::primary() {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kName:
      return name_or_constant();
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += take().text;
      return constant(Value::literal(text), token.line);
    }
    case TokenKind::kInteger:
      return constant(Value::integer(take().integer), token.line);
    case TokenKind::kFloat:
      return constant(Value::real(take().real), token.line);
    default:
      break;
  }
  if (token.is_operator("(")) {
    take();
    ExpressionPtr inner = tuple_or_expression(true, true);
    expect_operator(")");
    return inner;
  }
  if (token.is_operator("[")) return list();
  if (token.is_operator("{")) return dict();
  fail_at(token.line, "expected an expression, found {}", described(token));
}

ExpressionPtr Parser::name_or_constant() {
  const Token& token = take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return constant(Value::boolean(true), token.line);
  if (name == "false" || name == "False") return constant(Value::boolean(false), token.line);
  if (name == "none" || name == "None") return constant(Value::none(), token.line);
  if (name == "self") fail_unsupported(token.line, "'self' and blocks are not supported");
  ExpressionPtr made = make(ExpressionKind::kName, token.line);
  made->name = name;
  names_read_.push_back(name);
  return finished(std::move(made));
}

ExpressionPtr Parser::list() {
  ExpressionPtr made = make(ExpressionKind::kList, take().line);
  while (!current().is_operator("]")) {
    made->items.push_back(expression());
    if (!skip_operator(",")) break;
  }
  expect_operator("]");
  return finished(std::move(made));
}

ExpressionPtr Parser::dict() {
  ExpressionPtr made = make(ExpressionKind::kDict, take().line);
  while (!current().is_operator("}")) {
    made->items.push_back(expression());
    expect_operator(":");
    made->items.push_back(expression());
    if (!skip_operator(",")) break;
  }
  expect_operator("}");
  return finished(std::move(made));
}

ExpressionPtr Parser::postfix(ExpressionPtr object) {
  for (;;) {
    const Token& token = current();
    if (token.is_operator(".")) {
      take();
      const Token& part = take();
      if (part.kind == TokenKind::kName) {
        ExpressionPtr made = make(ExpressionKind::kAttribute, token.line);
        made->name = part.text;
        made->items.push_back(std::move(object));
        object = finished(std::move(made));
      } else if (part.kind == TokenKind::kInteger) {
        object = make(ExpressionKind::kItem, token.line, std::move(object),
                      constant(Value::integer(part.integer), part.line));
      } else {
        fail_at(part.line, "expected an attribute behind '.', found {}", described(part));
      }
    } else if (token.is_operator("[")) {
      object = subscript(std::move(object));
    } else if (token.is_operator("(")) {
      object = call(std::move(object));
    } else {
      return object;
    }
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr object) {
  const uint32_t line = take().line;
  const auto part = [this]() -> ExpressionPtr {
    if (current().is_operator(":") || current().is_operator("]")) return nullptr;
    return expression();
  };
  ExpressionPtr start = part();
  if (!current().is_operator(":")) {
    if (!start) fail_at(line, "a subscript without a key");
    if (current().is_operator(",")) {
      fail_unsupported(line, "a subscript of several keys is not supported");
    }
    expect_operator("]");
    return make(ExpressionKind::kItem, line, std::move(object), std::move(start));
  }
  ExpressionPtr made = make(ExpressionKind::kSlice, line);
  made->items.push_back(std::move(object));
  made->items.push_back(std::move(start));
  take();
  made->items.push_back(part());
  made->items.push_back(skip_operator(":") ? part() : nullptr);
  expect_operator("]");
  return finished(std::move(made));
}

ExpressionPtr Parser::filters(ExpressionPtr input) {
  for (;;) {
    if (skip_operator("|")) {
      input = filter_call(std::move(input));
    } else if (current().is_name("is")) {
      input = test_call(std::move(input));
    } else if (current().is_operator("(")) {
      input = call(std::move(input));
    } else {
      return input;
    }
  }
}

/// The name and arguments of a filter; a null input makes the innermost filter of a filter block.
ExpressionPtr Parser::filter_call(ExpressionPtr input) {
  ExpressionPtr made = make(ExpressionKind::kFilter, current().line);
  made->name = take_name("the name of a filter");
  made->filter = find_filter(made->name);
  if (made->filter == nullptr) {
    fail_at(made->line, "unknown filter '{}': there are {}", made->name, filter_names());
  }
  if (current().is_operator("(")) made->arguments = call_arguments();
  made->items.push_back(std::move(input));
  return finished(std::move(made));
}

ExpressionPtr Parser::test_call(ExpressionPtr value) {
  const uint32_t line = take().line;
  const bool negated = skip_name("not");
  ExpressionPtr made = make(ExpressionKind::kTest, line);
  made->name = take_name("the name of a test");
  made->test = find_test(made->name);
  if (made->test == nullptr) {
    fail_at(line, "unknown test '{}': there are {}", made->name, test_names());
  }
  const Token& token = current();
  const bool bare_argument = token.kind == TokenKind::kString ||
                             token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
                             token.is_operator("[") || token.is_operator("{") ||
                             (token.kind == TokenKind::kName && !token.is_name("else") &&
                              !token.is_name("or") && !token.is_name("and"));
  if (token.is_operator("(")) {
    made->arguments = call_arguments();
  } else if (bare_argument) {
    if (token.is_name("is")) fail_at(token.line, "tests cannot be chained with 'is'");
    made->arguments.positional.push_back(postfix(primary()));
  }
  if (value->kind == ExpressionKind::kName &&
      (made->name == "defined" || made->name == "undefined")) {
    names_tested_.insert(value->name);
  }
  made->items.push_back(std::move(value));
  made = finished(std::move(made));
  return negated ? make(ExpressionKind::kNot, line, std::move(made)) : std::move(made);
}

ExpressionPtr Parser::call(ExpressionPtr callee) {
  ExpressionPtr made = make(ExpressionKind::kCall, current().line);
  if (callee->kind == ExpressionKind::kName) {
    names_called_.emplace(callee->name, current().line);
    if (callee->name == "loop") {
      fail_unsupported(current().line,
                       "recursive loops are not supported: use a macro that calls "
                       "itself");
    }
  }
  made->items.push_back(std::move(callee));
  made->arguments = call_arguments();
  return finished(std::move(made));
}

CallArguments Parser::call_arguments() {
  const Nesting nesting(*this);
  CallArguments arguments;
  const uint32_t line = take().line;
  const auto require = [line](bool in_order) {
    if (!in_order) fail_at(line, "the arguments of a call are out of order");
  };
  while (!current().is_operator(")")) {
    if (skip_operator("*")) {
      require(!arguments.spread && !arguments.spread_keywords);
      arguments.spread = expression();
    } else if (skip_operator("**")) {
      require(!arguments.spread_keywords);
      arguments.spread_keywords = expression();
    } else if (current().kind == TokenKind::kName && ahead().is_operator("=")) {
      require(!arguments.spread_keywords);
      std::string name = take().text;
      take();
      for (const auto& [taken, value] : arguments.keywords) {
        if (taken == name) fail_at(line, "argument '{}' is given twice", name);
      }
      arguments.keywords.emplace_back(std::move(name), expression());
    } else {
      require(!arguments.spread && !arguments.spread_keywords && arguments.keywords.empty());
      arguments.positional.push_back(expression());
    }
    if (!skip_operator(",")) break;
  }
  expect_operator(")");
  return arguments;
}

}  // namespace atlas::model::jinja
