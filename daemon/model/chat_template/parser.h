// The recursive descent over tokens. Statements stand in parser.cpp, expressions in
// expression_parser.cpp.
#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/model/chat_template/ast.h"
#include "daemon/model/chat_template/lexer.h"

namespace atlas::model::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Program run();

 private:
  /// Counts the nesting of tags and brackets for as long as it lives.
  class Nesting {
   public:
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  // Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take();
  bool skip_operator(std::string_view symbol);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view symbol);
  void expect_name(std::string_view name);
  std::string take_name(std::string_view what);

  // Statements.
  Block block_until(std::initializer_list<std::string_view> ends, std::string_view opened,
                    uint32_t line);
  Statement statement();
  Statement if_statement(uint32_t line);
  Statement for_statement(uint32_t line);
  Statement set_statement(uint32_t line);
  Statement macro_statement(uint32_t line);
  Statement filter_block(uint32_t line);
  Statement with_statement(uint32_t line);
  Statement generation_block(uint32_t line);
  Statement print_statement(uint32_t line);
  void end_tag();
  Block body(std::initializer_list<std::string_view> ends, std::string_view opened, uint32_t line);
  Target target();
  Target target_part();
  void note_store(const std::string& name, uint32_t line);

  // Expressions, from the weakest operator to the strongest.
  ExpressionPtr tuple_or_expression(bool with_condition = true, bool in_parentheses = false);
  ExpressionPtr expression(bool with_condition = true);
  ExpressionPtr condition();
  ExpressionPtr logical_or();
  ExpressionPtr logical_and();
  ExpressionPtr logical_not();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr postfix(ExpressionPtr object);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr filters(ExpressionPtr input);
  ExpressionPtr filter_call(ExpressionPtr input);
  ExpressionPtr test_call(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr callee);
  ExpressionPtr list();
  ExpressionPtr dict();
  CallArguments call_arguments();

  ExpressionPtr make(ExpressionKind kind, uint32_t line);
  ExpressionPtr make(ExpressionKind kind, uint32_t line, ExpressionPtr first,
                     ExpressionPtr second = nullptr, ExpressionPtr third = nullptr);
  ExpressionPtr constant(Value value, uint32_t line);
  /// Notes the height of the tree; fails where it is too high.
  ExpressionPtr finished(ExpressionPtr expression);
  void note_mentions(const Expression& expression);
  /// Notes a constant text that is read as a key.
  void mention_constant(const Expression* expression);
  /// Fails for a call of a name that is nothing the template could call.
  void check_called_names() const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  uint32_t nesting_ = 0;
  uint32_t loops_ = 0;
  uint32_t open_fors_ = 0;
  Program program_;
  /// Names read so far, in order: what a macro's body reads is a tail of it.
  std::vector<std::string> names_read_;
  std::set<std::string, std::less<>> names_bound_;
  std::set<std::string, std::less<>> names_tested_;
  std::map<std::string, uint32_t> names_called_;
};

}  // namespace atlas::model::jinja
