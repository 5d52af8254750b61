// Statements of a template.
#include "daemon/model/chat_template/parser.h"

#include <algorithm>

#include "daemon/model/chat_template/failure.h"

namespace atlas::model::jinja {
namespace {

/// Tags of Jinja that chat templates have no use for.
constexpr std::string_view kUnsupportedTags[] = {
    "block", "extends", "include", "import", "from", "autoescape", "call", "do", "trans", "debug"};

bool is_any(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string joined(std::initializer_list<std::string_view> names) {
  std::string result;
  for (const std::string_view name : names) {
    if (!result.empty()) result += " or ";
    result += fmt::format("'{}'", name);
  }
  return result;
}

}  // namespace

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMaxNesting) {
    fail_at(parser_.current().line, "tags or expressions are nested more than {} deep",
            kMaxNesting);
  }
  ++parser_.nesting_;
}

const Token& Parser::take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::skip_operator(std::string_view symbol) {
  if (!current().is_operator(symbol)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

void Parser::expect_operator(std::string_view symbol) {
  if (!skip_operator(symbol)) {
    fail_at(current().line, "expected '{}', found {}", symbol, described(current()));
  }
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) {
    fail_at(current().line, "expected '{}', found {}", name, described(current()));
  }
}

std::string Parser::take_name(std::string_view what) {
  if (current().kind != TokenKind::kName) {
    fail_at(current().line, "expected {}, found {}", what, described(current()));
  }
  return take().text;
}

void Parser::end_tag() {
  if (current().kind != TokenKind::kTagEnd) {
    fail_at(current().line, "expected '%}}', found {}", described(current()));
  }
  take();
}

/// Statements up to a tag of one of these names, which is then the current token.
Block Parser::block_until(std::initializer_list<std::string_view> ends, std::string_view opened,
                          uint32_t line) {
  const Nesting nesting(*this);
  Block block;
  for (;;) {
    const Token& token = current();
    if (token.kind == TokenKind::kEnd) {
      if (ends.size() == 0) return block;
      fail_at(token.line, "the template ends, but '{}' of line {} still waits for {}", opened, line,
              joined(ends));
    }
    if (token.kind == TokenKind::kData) {
      block.push_back({token.line, TextStatement{Value::literal(token.text)}});
      take();
    } else if (token.kind == TokenKind::kPrintBegin) {
      take();
      PrintStatement print{tuple_or_expression()};
      if (current().kind != TokenKind::kPrintEnd) {
        fail_at(current().line, "expected '}}}}', found {}", described(current()));
      }
      take();
      block.push_back({token.line, std::move(print)});
    } else {
      take();
      if (current().kind == TokenKind::kName && is_any(current().text, ends)) return block;
      block.push_back(statement());
      end_tag();
    }
  }
}

/// The inside of a tag pair: the rest of the opening tag, then statements.
Block Parser::body(std::initializer_list<std::string_view> ends, std::string_view opened,
                   uint32_t line) {
  skip_operator(":");
  end_tag();
  return block_until(ends, opened, line);
}

Statement Parser::statement() {
  const Token& token = current();
  const uint32_t line = token.line;
  if (token.kind != TokenKind::kName) {
    fail_at(line, "expected the name of a tag, found {}", described(token));
  }
  const std::string tag = take().text;
  if (tag == "if") return if_statement(line);
  if (tag == "for") return for_statement(line);
  if (tag == "set") return set_statement(line);
  if (tag == "macro") return macro_statement(line);
  if (tag == "filter") return filter_block(line);
  if (tag == "with") return with_statement(line);
  if (tag == "generation") return generation_block(line);
  if (tag == "print") return print_statement(line);
  if (tag == "break" || tag == "continue") {
    if (loops_ == 0) fail_at(line, "'{}' outside of a loop", tag);
    if (tag == "break") return {line, BreakStatement{}};
    return {line, ContinueStatement{}};
  }
  if (std::find(std::begin(kUnsupportedTags), std::end(kUnsupportedTags), tag) !=
      std::end(kUnsupportedTags)) {
    fail_unsupported(line, "the tag '{}' is not supported in chat templates", tag);
  }
  fail_at(line, "unknown tag '{}'", tag);
}

Statement Parser::if_statement(uint32_t line) {
  IfStatement statement;
  for (;;) {
    ExpressionPtr test = tuple_or_expression(false);
    Block block = body({"elif", "else", "endif"}, "if", line);
    statement.branches.emplace_back(std::move(test), std::move(block));
    const std::string next = take().text;
    if (next == "elif") continue;
    if (next == "else") {
      statement.branches.emplace_back(nullptr, body({"endif"}, "if", line));
      take();
    }
    return {line, std::move(statement)};
  }
}

Statement Parser::for_statement(uint32_t line) {
  ForStatement statement;
  ++open_fors_;
  statement.target = target();
  expect_name("in");
  statement.iterable = tuple_or_expression(false);
  if (skip_name("if")) statement.condition = expression();
  if (current().is_name("recursive")) {
    fail_unsupported(current().line,
                     "recursive loops are not supported: use a macro that calls "
                     "itself");
  }
  names_bound_.insert("loop");
  ++loops_;
  statement.body = body({"endfor", "else"}, "for", line);
  --loops_;
  if (take().text == "else") {
    statement.otherwise = body({"endfor"}, "for", line);
    take();
  }
  --open_fors_;
  return {line, std::move(statement)};
}

Statement Parser::set_statement(uint32_t line) {
  Target written = target();
  if (skip_operator("=")) {
    return {line, SetStatement{std::move(written), tuple_or_expression()}};
  }
  SetBlockStatement statement{std::move(written), nullptr, {}};
  while (skip_operator("|")) statement.filter = filter_call(std::move(statement.filter));
  statement.body = body({"endset"}, "set", line);
  take();
  return {line, std::move(statement)};
}

Statement Parser::macro_statement(uint32_t line) {
  MacroStatement macro;
  macro.name = take_name("the name of a macro");
  note_store(macro.name, line);
  expect_operator("(");
  while (!current().is_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    Parameter parameter{take_name("a parameter"), nullptr};
    names_bound_.insert(parameter.name);
    if (skip_operator("=")) {
      parameter.otherwise = expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().otherwise) {
      fail_at(current().line, "parameter '{}' without a default follows one with a default",
              parameter.name);
    }
    macro.parameters.push_back(std::move(parameter));
  }
  expect_operator(")");
  const size_t names_before = names_read_.size();
  // A macro's body is a function of its own: a loop around it is out of its reach.
  const uint32_t loops_around = std::exchange(loops_, 0);
  macro.body = body({"endmacro"}, "macro", line);
  loops_ = loops_around;
  take();
  const auto reads = [&](std::string_view name) {
    return std::find(names_read_.begin() + static_cast<std::ptrdiff_t>(names_before),
                     names_read_.end(), name) != names_read_.end();
  };
  macro.takes_varargs = reads("varargs");
  macro.takes_kwargs = reads("kwargs");
  if (reads("caller")) {
    fail_unsupported(line, "macro '{}' uses caller(): call blocks are not supported", macro.name);
  }
  return {line, std::move(macro)};
}

Statement Parser::filter_block(uint32_t line) {
  FilterBlockStatement statement;
  do {
    statement.filter = filter_call(std::move(statement.filter));
  } while (skip_operator("|"));
  statement.body = body({"endfilter"}, "filter", line);
  take();
  return {line, std::move(statement)};
}

Statement Parser::with_statement(uint32_t line) {
  ScopeStatement statement;
  while (current().kind != TokenKind::kTagEnd) {
    if (!statement.assignments.empty()) expect_operator(",");
    Target written = target_part();
    expect_operator("=");
    statement.assignments.emplace_back(std::move(written), expression());
  }
  statement.body = body({"endwith"}, "with", line);
  take();
  return {line, std::move(statement)};
}

Statement Parser::generation_block(uint32_t line) {
  ScopeStatement statement;
  // transformers renders the body as a function of its own.
  const uint32_t loops_around = std::exchange(loops_, 0);
  statement.body = body({"endgeneration"}, "generation", line);
  loops_ = loops_around;
  take();
  return {line, std::move(statement)};
}

Statement Parser::print_statement(uint32_t line) {
  auto text = make(ExpressionKind::kConcat, line);
  while (current().kind != TokenKind::kTagEnd) {
    if (!text->items.empty()) expect_operator(",");
    text->items.push_back(expression());
  }
  return {line, PrintStatement{finished(std::move(text))}};
}

void Parser::note_store(const std::string& name, uint32_t line) {
  if (name == "loop" && open_fors_ > 0) {
    fail_at(line, "'loop' cannot be assigned to inside of a loop");
  }
  names_bound_.insert(name);
}

Target Parser::target_part() {
  const Nesting nesting(*this);
  const uint32_t line = current().line;
  if (skip_operator("(")) {
    Target inner = target();
    expect_operator(")");
    return inner;
  }
  Target written;
  written.line = line;
  written.name = take_name("a name to assign to");
  if (is_any(written.name, {"true", "false", "none", "True", "False", "None"})) {
    fail_at(line, "cannot assign to '{}'", written.name);
  }
  if (skip_operator(".")) {
    written.attribute = take_name("an attribute");
    names_read_.push_back(written.name);
  } else {
    note_store(written.name, line);
  }
  return written;
}

Target Parser::target() {
  Target first = target_part();
  if (!current().is_operator(",")) return first;
  Target tuple;
  tuple.line = first.line;
  tuple.is_tuple = true;
  tuple.items.push_back(std::move(first));
  while (skip_operator(",")) {
    const Token& next = current();
    if (next.is_name("in") || next.is_operator("=") || next.is_operator(")")) break;
    tuple.items.push_back(target_part());
  }
  return tuple;
}

void Parser::check_called_names() const {
  for (const auto& [name, line] : names_called_) {
    if (names_bound_.contains(name) || names_tested_.contains(name) || find_function(name))
      continue;
    fail_at(line, "unknown function '{}'", name);
  }
}

Program Parser::run() {
  program_.body = block_until({}, "", 0);
  check_called_names();
  return std::move(program_);
}

Program parse_program(std::string_view source) {
  return Parser(tokenize(normalize_newlines(source))).run();
}

}  // namespace atlas::model::jinja
