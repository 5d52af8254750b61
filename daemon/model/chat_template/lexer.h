// Cuts a template into tokens: the text between tags, with Jinja's whitespace rules applied, and
// what stands inside of tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/model/chat_template/value.h"

namespace atlas::model::jinja {

enum class TokenKind : uint8_t {
  kData,
  kPrintBegin,
  kPrintEnd,
  kTagBegin,
  kTagEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  uint32_t line = 0;
  /// Data, name, operator, or the string with its escapes resolved.
  std::string text;
  Integer integer = 0;
  double real = 0;

  bool is_operator(std::string_view symbol) const {
    return kind == TokenKind::kOperator && text == symbol;
  }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

/// The token as messages name it.
std::string described(const Token& token);

/// Tokens of the whole template, an end token last. Fails with the line for what is no token.
/// trim_blocks and lstrip_blocks are on, a last newline is dropped, as transformers sets them.
std::vector<Token> tokenize(std::string_view source);

/// The source with "\r\n" and "\r" turned to "\n".
std::string normalize_newlines(std::string_view source);

/// Resolves the escapes between the quotes of a string token. Fails for those that are malformed.
std::string unescape(std::string_view body, uint32_t line);

}  // namespace atlas::model::jinja
