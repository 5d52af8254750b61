// The lexer: a root state for text, and one state for the inside of each kind of tag.
#include "daemon/model/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/unicode.h"

namespace atlas::model::jinja {
namespace {

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit_char(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run();

 private:
  void root();
  bool raw_block(size_t open, size_t data_begin);
  void comment();
  void tag(TokenKind begin, TokenKind end);
  bool tag_end(TokenKind end);
  void inner_token();
  void number();
  void string_token();
  void operator_token();

  void data(size_t begin, size_t open, char control, bool lstrip);
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }
  void skip_space() {
    while (at_ < source_.size()) {
      size_t behind = at_;
      if (!is_space(next_code_point(source_, behind))) break;
      move_to(behind);
    }
  }
  /// Moves on and counts the lines passed.
  void move_to(size_t position) {
    line_ += static_cast<uint32_t>(
        std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                   source_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
    at_ = position;
  }
  /// Moves behind the end of a tag: `-` eats all space, otherwise one newline goes.
  void close(size_t behind, char control, bool trim) {
    move_to(behind);
    line_starts_ = false;
    if (control == '-') {
      skip_space();
    } else if (control != '+' && trim && at_ < source_.size() && source_[at_] == '\n') {
      move_to(at_ + 1);
      line_starts_ = true;
    }
  }
  bool looking_at(std::string_view text, size_t position) const {
    return source_.substr(std::min(position, source_.size())).starts_with(text);
  }
  /// The `-` or `+` at that place, or 0.
  char control_at(size_t position) const {
    const char c = position < source_.size() ? source_[position] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  std::string_view source_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  /// Whether the text at hand begins a line: at the start, and where a newline was trimmed.
  bool line_starts_ = true;
  std::string brackets_;
  std::vector<Token> tokens_;
};

/// The text before a tag: stripped as the tag's sign or lstrip_blocks asks for.
void Lexer::data(size_t begin, size_t open, char control, bool lstrip) {
  std::string_view text = source_.substr(begin, open - begin);
  if (control == '-') {
    size_t end = text.size();
    for (size_t before = end; end > 0; end = before) {
      if (!is_space(previous_code_point(text, before))) break;
    }
    text = text.substr(0, end);
  } else if (control != '+' && lstrip) {
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line > 0 || line_starts_) {
      size_t position = line;
      while (position < text.size()) {
        size_t behind = position;
        if (!is_space(next_code_point(text, behind))) break;
        position = behind;
      }
      if (position == text.size()) text = text.substr(0, line);
    }
  }
  if (!text.empty()) push(TokenKind::kData, std::string(text));
  move_to(open);
}

void Lexer::root() {
  const size_t begin = at_;
  size_t open = begin;
  for (;; ++open) {
    open = source_.find('{', open);
    if (open == std::string_view::npos || open + 1 >= source_.size()) {
      push(TokenKind::kData, std::string(source_.substr(begin)));
      move_to(source_.size());
      return;
    }
    const char second = source_[open + 1];
    if (second == '{' || second == '%' || second == '#') break;
  }
  if (raw_block(open, begin)) return;
  const char control = control_at(open + 2);
  const bool print = source_[open + 1] == '{';
  data(begin, open, control, !print);
  const bool is_comment = source_[open + 1] == '#';
  move_to(open + (control != '\0' ? 3 : 2));
  if (is_comment) {
    comment();
  } else if (print) {
    tag(TokenKind::kPrintBegin, TokenKind::kPrintEnd);
  } else {
    tag(TokenKind::kTagBegin, TokenKind::kTagEnd);
  }
}

void Lexer::comment() {
  const size_t end = source_.find("#}", at_);
  if (end == std::string_view::npos) fail_at(line_, "a comment is not closed: '#}}' is missing");
  // The sign that opened the comment does not close it.
  close(end + 2, end > at_ ? control_at(end - 1) : '\0', true);
}

/// `{% raw %}...{% endraw %}`: the text between is data, tags and all.
bool Lexer::raw_block(size_t open, size_t data_begin) {
  const auto spaces = [this](size_t position) {
    while (position < source_.size()) {
      size_t behind = position;
      if (!is_space(next_code_point(source_, behind))) break;
      position = behind;
    }
    return position;
  };
  if (source_[open + 1] != '%') return false;
  const char control = control_at(open + 2);
  size_t at = spaces(open + (control != '\0' ? 3 : 2));
  if (!looking_at("raw", at)) return false;
  at = spaces(at + 3);
  const bool eats_space = looking_at("-%}", at);
  if (!eats_space && !looking_at("%}", at)) return false;
  data(data_begin, open, control, true);
  move_to(at + (eats_space ? 3 : 2));
  if (eats_space) skip_space();
  line_starts_ = false;
  const uint32_t opened = line_;
  const size_t begin = at_;
  for (size_t end = source_.find("{%", begin); end != std::string_view::npos;
       end = source_.find("{%", end + 1)) {
    const char end_control = control_at(end + 2);
    size_t behind = spaces(end + (end_control != '\0' ? 3 : 2));
    if (!looking_at("endraw", behind)) continue;
    behind = spaces(behind + 6);
    const char close_control = control_at(behind);
    if (close_control != '\0') ++behind;
    if (!looking_at("%}", behind)) continue;
    data(begin, end, end_control, true);
    close(behind + 2, close_control, true);
    return true;
  }
  fail_at(opened, "a raw block is not closed: '{{% endraw %}}' is missing");
}

void Lexer::tag(TokenKind begin, TokenKind end) {
  push(begin, "");
  brackets_.clear();
  for (;;) {
    skip_space();
    if (at_ >= source_.size()) {
      fail_at(line_, "a tag is not closed: '{}' is missing",
              end == TokenKind::kPrintEnd ? "}}" : "%}");
    }
    if (brackets_.empty() && tag_end(end)) return;
    inner_token();
  }
}

bool Lexer::tag_end(TokenKind end) {
  const bool print = end == TokenKind::kPrintEnd;
  const std::string_view closing = print ? "}}" : "%}";
  char control = control_at(at_);
  // `+}}` does not exist: the plus is an operator there.
  if (print && control == '+') control = '\0';
  const size_t position = at_ + (control != '\0' ? 1 : 0);
  if (!looking_at(closing, position)) return false;
  push(end, "");
  close(position + 2, control, !print);
  return true;
}

void Lexer::inner_token() {
  const char c = source_[at_];
  if (is_digit_char(c)) {
    number();
  } else if (is_name_start(c)) {
    size_t end = at_;
    while (end < source_.size() && is_name_char(source_[end])) ++end;
    push(TokenKind::kName, std::string(source_.substr(at_, end - at_)));
    move_to(end);
  } else if (c == '\'' || c == '"') {
    string_token();
  } else if (static_cast<unsigned char>(c) >= 0x80) {
    fail_unsupported(line_, "names and operators outside of ASCII are not supported");
  } else {
    operator_token();
  }
}

void Lexer::number() {
  const auto digits = [this](size_t position, auto&& accepted) {
    // Underscores may stand between digits.
    while (position < source_.size() &&
           (accepted(source_[position]) ||
            (source_[position] == '_' && position + 1 < source_.size() &&
             accepted(source_[position + 1])))) {
      ++position;
    }
    return position;
  };
  const auto without_underscores = [](std::string_view text) {
    std::string result(text);
    std::erase(result, '_');
    return result;
  };
  const auto char_at = [this](size_t position) {
    return position < source_.size() ? source_[position] : '\0';
  };
  size_t end = digits(at_, is_digit_char);
  bool real = false;
  // Behind a dot stands an index: `pairs.0.1` holds no float.
  const bool index = at_ > 0 && source_[at_ - 1] == '.';
  if (!index && char_at(end) == '.' && is_digit_char(char_at(end + 1))) {
    real = true;
    end = digits(end + 1, is_digit_char);
  }
  if (!index && (char_at(end) == 'e' || char_at(end) == 'E')) {
    const char sign = char_at(end + 1);
    const size_t exponent = end + (sign == '+' || sign == '-' ? 2 : 1);
    if (is_digit_char(char_at(exponent))) {
      real = true;
      end = digits(exponent, is_digit_char);
    }
  }
  Token token;
  token.line = line_;
  if (real) {
    const std::string text = without_underscores(source_.substr(at_, end - at_));
    token.kind = TokenKind::kFloat;
    token.real = std::strtod(text.c_str(), nullptr);
  } else {
    int base = 10;
    size_t begin = at_;
    const char prefix = static_cast<char>(char_at(at_ + 1) | 0x20);
    if (char_at(at_) == '0' && (prefix == 'x' || prefix == 'o' || prefix == 'b')) {
      base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : 2;
      begin = at_ + 2;
      end = digits(begin, [base](char c) {
        const int value = is_digit_char(c)    ? c - '0'
                          : (c | 0x20) >= 'a' ? (c | 0x20) - 'a' + 10
                                              : 99;
        return value < base;
      });
      if (end == begin) fail_at(line_, "a number without digits");
    }
    token.kind = TokenKind::kInteger;
    const std::string text = without_underscores(source_.substr(begin, end - begin));
    if (base == 10 && text.size() > 1 && text[0] == '0' &&
        text.find_first_not_of('0') != std::string::npos) {
      fail_at(line_, "an integer with a leading zero");
    }
    uint64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (parsed.ec != std::errc{}) fail_at(line_, "an integer of more than 64 bits");
    token.integer = value;
  }
  tokens_.push_back(std::move(token));
  move_to(end);
}

void Lexer::string_token() {
  const char quote = source_[at_];
  size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) fail_at(line_, "a string is not closed");
  push(TokenKind::kString, unescape(source_.substr(at_ + 1, end - at_ - 1), line_));
  move_to(end + 1);
}

void Lexer::operator_token() {
  static constexpr std::array<std::string_view, 6> kDouble = {"//", "**", "==", "!=", ">=", "<="};
  static constexpr std::string_view kSingle = "+-/*%~[](){}><=.:|,;";
  const std::string_view two = source_.substr(at_, 2);
  const bool is_double = std::find(kDouble.begin(), kDouble.end(), two) != kDouble.end();
  const std::string_view symbol = is_double ? two : source_.substr(at_, 1);
  if (!is_double && kSingle.find(symbol) == std::string_view::npos) {
    fail_at(line_, "unexpected character '{}'", symbol);
  }
  if (symbol == "(" || symbol == "[" || symbol == "{") {
    brackets_.push_back(symbol == "(" ? ')' : symbol == "[" ? ']' : '}');
  } else if (symbol == ")" || symbol == "]" || symbol == "}") {
    if (brackets_.empty()) fail_at(line_, "unexpected '{}'", symbol);
    if (brackets_.back() != symbol[0]) {
      fail_at(line_, "unexpected '{}', expected '{}'", symbol, brackets_.back());
    }
    brackets_.pop_back();
  }
  push(TokenKind::kOperator, std::string(symbol));
  move_to(at_ + symbol.size());
}

std::vector<Token> Lexer::run() {
  while (at_ < source_.size()) root();
  push(TokenKind::kEnd, "");
  return std::move(tokens_);
}

}  // namespace

std::string normalize_newlines(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      result.push_back(source[i]);
    } else {
      result.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  return result;
}

std::string unescape(std::string_view body, uint32_t line) {
  static constexpr std::string_view kLetters = "abfnrtv\\'\"";
  static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
  std::string result;
  for (size_t i = 0; i < body.size();) {
    if (body[i] != '\\' || i + 1 >= body.size()) {
      result.push_back(body[i++]);
      continue;
    }
    const char letter = body[i + 1];
    if (const size_t known = kLetters.find(letter); known != std::string_view::npos) {
      result.push_back(kMeanings[known]);
      i += 2;
    } else if (letter == '\n') {
      i += 2;
    } else if (letter >= '0' && letter <= '7') {
      uint32_t code = 0;
      size_t end = i + 1;
      while (end < std::min(i + 4, body.size()) && body[end] >= '0' && body[end] <= '7') {
        code = code * 8 + static_cast<uint32_t>(body[end++] - '0');
      }
      append_code_point(code, result);
      i = end;
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      const size_t length = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      const std::string_view digits = body.substr(i + 2, length);
      uint32_t code = 0;
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
      if (digits.size() != length || parsed.ptr != digits.data() + digits.size()) {
        fail_at(line, "a string with a truncated \\{} escape", letter);
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        fail_at(line, "a string with an escape that is no character: \\{}{}", letter, digits);
      }
      append_code_point(code, result);
      i += 2 + length;
    } else if (letter == 'N') {
      fail_unsupported(line, "a string with \\N{{...}}: character names are not supported");
    } else {
      // As in Python, an unknown escape stands for itself.
      result.push_back('\\');
      ++i;
    }
  }
  return result;
}

std::string described(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kPrintBegin:
      return "'{{'";
    case TokenKind::kPrintEnd:
      return "'}}'";
    case TokenKind::kTagBegin:
      return "'{%'";
    case TokenKind::kTagEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    case TokenKind::kName:
    case TokenKind::kOperator:
      return fmt::format("'{}'", token.text);
    case TokenKind::kEnd:
      break;
  }
  return "the end of the template";
}

std::vector<Token> tokenize(std::string_view source) {
  if (source.ends_with('\n')) source.remove_suffix(1);
  return Lexer(source).run();
}

}  // namespace atlas::model::jinja
