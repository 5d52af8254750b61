// The two format languages of Python's str: `format % values` and `format.format(...)`.
#include <algorithm>
#include <cmath>

#include "daemon/model/chat_template/arguments.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/unicode.h"

namespace atlas::model::jinja {
namespace {

/// [[fill]align][sign][#][0][width][grouping][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = 0;
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char grouping = 0;
  int64_t precision = -1;
  char type = 0;
  bool empty = true;
};

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

int64_t read_number(std::string_view text, size_t& position) {
  int64_t number = 0;
  while (position < text.size() && is_decimal(text[position])) {
    number = number * 10 + (text[position++] - '0');
    if (number > kMaxFormatWidth) {
      fail_limit("a format with a width or precision above {}", kMaxFormatWidth);
    }
  }
  return number;
}

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

Spec parse_spec(std::string_view text) {
  Spec spec;
  spec.empty = text.empty();
  if (text.find('{') != std::string_view::npos) {
    fail_unsupported(0, "a field inside a format specification is not supported");
  }
  size_t at = 0;
  if (!text.empty()) {
    size_t behind = 0;
    next_code_point(text, behind);
    if (behind < text.size() && is_align(text[behind])) {
      spec.fill = text.substr(0, behind);
      spec.align = text[behind];
      at = behind + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
  if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = text[at++];
  if (peek() == '#') {
    spec.alternate = true;
    ++at;
  }
  if (peek() == '0') {
    ++at;
    if (spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
  }
  spec.width = read_number(text, at);
  if (peek() == ',' || peek() == '_') spec.grouping = text[at++];
  if (peek() == '.') {
    ++at;
    if (!is_decimal(peek())) fail("Format specifier missing precision");
    spec.precision = read_number(text, at);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) fail("Invalid format specifier '{}'", text);
  return spec;
}

std::string grouped(std::string_view digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string result;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) result.push_back(separator);
    result.push_back(digits[i]);
  }
  return result.append(digits.substr(whole));
}

/// Digits of a magnitude in base 2, 8, 10 or 16.
std::string integer_digits(Integer value, char type) {
  const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  const char* letters = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    const auto digit = static_cast<int>(value % base);
    digits.push_back(letters[digit < 0 ? -digit : digit]);
    value /= base;
  } while (value != 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string real_digits(double magnitude, const Spec& spec) {
  if (std::isnan(magnitude)) return "nan";
  if (std::isinf(magnitude)) return "inf";
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  switch (spec.type) {
    case 'e':
      return fmt::format("{:.{}e}", magnitude, precision);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, precision);
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", magnitude, precision);
    case 'g':
      return fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
    case 'G':
      return fmt::format("{:.{}G}", magnitude, std::max(precision, 1));
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100.0, precision);
    case 0:
      break;
    default:
      fail("Unknown format code '{}' for object of type 'float'", spec.type);
  }
  if (spec.precision < 0) return float_text(magnitude);
  std::string digits = fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

std::string format_number(const Value& value, const Spec& spec) {
  static constexpr std::string_view kRealTypes = "eEfFgG%";
  static constexpr std::string_view kIntegerTypes = "dboxX";
  const bool real =
      value.is(Kind::kFloat) || (spec.type != 0 && kRealTypes.find(spec.type) != std::string::npos);
  if (!real && spec.type != 0 && kIntegerTypes.find(spec.type) == std::string::npos) {
    fail("Unknown format code '{}' for object of type 'int'", spec.type);
  }
  const bool negative =
      real ? std::signbit(value.as_real()) && !std::isnan(value.as_real()) : value.as_integer() < 0;
  std::string digits = real ? real_digits(std::abs(value.as_real()), spec)
                            : integer_digits(value.as_integer(), spec.type);
  if (spec.grouping != 0) digits = grouped(digits, spec.grouping);
  std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (!real && spec.alternate && spec.type != 0 && spec.type != 'd') {
    sign += std::string("0") + spec.type;
  }
  const auto length = static_cast<int64_t>(sign.size() + digits.size());
  const int64_t missing = std::max<int64_t>(spec.width - length, 0);
  const char align = spec.align == 0 ? '>' : spec.align;
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string left;
  std::string right;
  for (int64_t i = 0; i < before; ++i) left += spec.fill;
  for (int64_t i = before; i < missing; ++i) right += spec.fill;
  return align == '=' ? sign + left + digits : left + sign + digits + right;
}

void append_padded(const Text& text, const Spec& spec, Text& out) {
  size_t size = count_code_points(text.bytes());
  size_t end = text.size();
  if (spec.precision >= 0 && static_cast<size_t>(spec.precision) < size) {
    size = static_cast<size_t>(spec.precision);
    end = code_point_offset(text.bytes(), size);
  }
  const int64_t missing = std::max<int64_t>(spec.width - static_cast<int64_t>(size), 0);
  const int64_t before = spec.align == '>' ? missing : spec.align == '^' ? missing / 2 : 0;
  for (int64_t i = 0; i < before; ++i) out.append(spec.fill, false);
  out.append(text, 0, end);
  for (int64_t i = before; i < missing; ++i) out.append(spec.fill, false);
}

void check_size(const Text& out) {
  if (out.size() > kMaxTextBytes) {
    fail_limit("the template formats a text of more than {} MiB", kMaxTextBytes >> 20);
  }
}

/// One replacement field of str.format.
void append_formatted(Runtime& runtime, const Value& value, const Spec& spec, Text& out) {
  if (value.is(Kind::kText)) {
    if ((spec.type != 0 && spec.type != 's') || spec.align == '=') {
      fail("Unknown format code for object of type 'str'");
    }
    append_padded(value.text(), spec, out);
  } else if (value.is_number() && !(spec.empty && value.is(Kind::kBoolean))) {
    out.append(format_number(value, spec), value.plain());
  } else {
    if (!spec.empty) fail("unsupported format string passed to {}.__format__", type_name(value));
    out.append(to_text(runtime, value));
  }
}

/// `format % values`, one conversion after the other.
class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Text& format, const Value& arguments)
      : runtime_(runtime), format_(format), arguments_(arguments) {}

  Text run();

 private:
  const Value& next_argument();
  void conversion();
  void append_number(Spec& spec, const Value& value);
  Text conversion_text(char type, const Value& value);
  int64_t width_or_star();
  char peek() const { return at_ < format_.size() ? format_.bytes()[at_] : '\0'; }

  Runtime& runtime_;
  const Text& format_;
  const Value& arguments_;
  Text out_;
  size_t at_ = 0;
  size_t used_ = 0;
};

const Value& PercentFormatter::next_argument() {
  if (!arguments_.is(Kind::kTuple)) {
    if (used_++ > 0) fail("not enough arguments for format string");
    return arguments_;
  }
  if (used_ >= arguments_.items().size()) fail("not enough arguments for format string");
  return arguments_.items()[used_++];
}

Text PercentFormatter::conversion_text(char type, const Value& value) {
  if (type == 's') return to_text(runtime_, value);
  if (type != 'c') return {repr(runtime_, value), value.plain()};
  if (value.is(Kind::kText) && count_code_points(value.text().bytes()) == 1) return value.text();
  const bool scalar = value.is_integral() && value.as_integer() >= 0 &&
                      value.as_integer() <= 0x10FFFF &&
                      (value.as_integer() < 0xD800 || value.as_integer() > 0xDFFF);
  if (!scalar) fail("%c requires int or char");
  std::string bytes;
  append_code_point(static_cast<char32_t>(value.as_integer()), bytes);
  return {bytes, value.plain()};
}

int64_t PercentFormatter::width_or_star() {
  if (peek() != '*') return read_number(format_.bytes(), at_);
  ++at_;
  const int64_t width = as_index(next_argument(), "* width");
  if (width < -kMaxFormatWidth || width > kMaxFormatWidth) {
    fail_limit("a format with a width or precision above {}", kMaxFormatWidth);
  }
  return width;
}

void PercentFormatter::append_number(Spec& spec, const Value& value) {
  static constexpr std::string_view kIntegerTypes = "diuxXo";
  if (!value.is_number()) {
    require_defined(value);
    fail("%{} format: a real number is required, not {}", spec.type, type_name(value));
  }
  Value number = value;
  if (kIntegerTypes.find(spec.type) != std::string_view::npos) {
    if (value.is(Kind::kFloat)) {
      if (!(std::abs(value.as_real()) < 1e18)) fail("cannot convert float to integer");
      number = Value::integer(static_cast<int64_t>(value.as_real()), value.plain());
    }
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    spec.precision = -1;
  }
  out_.append(format_number(number, spec), value.plain());
}

void PercentFormatter::conversion() {
  Spec spec;
  const Value* value = nullptr;
  if (peek() == '(') {
    const size_t close = format_.bytes().find(')', at_);
    if (close == std::string::npos) fail("incomplete format key");
    if (!arguments_.is(Kind::kDict)) fail("format requires a mapping");
    const std::string key = format_.bytes().substr(at_ + 1, close - at_ - 1);
    const size_t place = find_text_key(runtime_, arguments_.dict(), key);
    if (place == arguments_.dict().items.size()) fail("format key '{}' is missing", key);
    value = &arguments_.dict().items[place].second;
    at_ = close + 1;
  }
  bool zero = false;
  for (;; ++at_) {
    if (peek() == '-') {
      spec.align = '<';
    } else if (peek() == '+') {
      spec.sign = '+';
    } else if (peek() == ' ') {
      spec.sign = spec.sign == '+' ? '+' : ' ';
    } else if (peek() == '#') {
      spec.alternate = true;
    } else if (peek() == '0') {
      zero = true;
    } else {
      break;
    }
  }
  spec.width = width_or_star();
  if (spec.width < 0) {
    spec.width = -spec.width;
    spec.align = '<';
  }
  if (peek() == '.') {
    ++at_;
    spec.precision = std::max<int64_t>(width_or_star(), 0);
  }
  while (peek() == 'h' || peek() == 'l' || peek() == 'L') ++at_;
  if (at_ >= format_.size()) fail("incomplete format");
  spec.type = format_.bytes()[at_++];
  if (spec.type == '%') {
    out_.append("%", false);
    return;
  }
  static constexpr std::string_view kTypes = "sradiuxXoeEfFgGc";
  if (kTypes.find(spec.type) == std::string_view::npos) {
    fail("unsupported format character '{}'", spec.type);
  }
  if (value == nullptr) value = &next_argument();
  if (spec.type == 's' || spec.type == 'r' || spec.type == 'a' || spec.type == 'c') {
    if (spec.align == 0) spec.align = '>';
    append_padded(conversion_text(spec.type, *value), spec, out_);
    return;
  }
  if (zero && spec.align == 0) {
    spec.align = '=';
    spec.fill = "0";
  }
  append_number(spec, *value);
}

Text PercentFormatter::run() {
  while (at_ < format_.size()) {
    const size_t percent = std::min(format_.bytes().find('%', at_), format_.size());
    out_.append(format_, at_, percent);
    at_ = percent + 1;
    if (percent < format_.size()) conversion();
    runtime_.budget().step();
    check_size(out_);
  }
  const bool all_used = arguments_.is(Kind::kTuple)
                            ? used_ == arguments_.items().size()
                            : used_ > 0 || arguments_.is(Kind::kDict) || arguments_.is(Kind::kList);
  if (!all_used) fail("not all arguments converted during string formatting");
  return std::move(out_);
}

/// The value that a field name such as `0`, `name` or `name.part[key]` leads to.
class FieldLookup {
 public:
  FieldLookup(Runtime& runtime, const Arguments& arguments)
      : runtime_(runtime), arguments_(arguments) {}

  Value find(std::string_view field);

 private:
  Value first(std::string_view name);

  Runtime& runtime_;
  const Arguments& arguments_;
  size_t automatic_ = 0;
};

Value FieldLookup::first(std::string_view name) {
  size_t index = 0;
  if (name.empty()) {
    index = automatic_++;
  } else if (std::all_of(name.begin(), name.end(), is_decimal)) {
    size_t position = 0;
    index = static_cast<size_t>(read_number(name, position));
  } else {
    for (const auto& [key, value] : arguments_.keywords) {
      if (key == name) return value;
    }
    fail("format() has no argument '{}'", name);
  }
  if (index >= arguments_.positional.size()) {
    fail("Replacement index {} out of range for positional args tuple", index);
  }
  return arguments_.positional[index];
}

Value FieldLookup::find(std::string_view field) {
  const size_t name_end = std::min(field.find_first_of(".["), field.size());
  Value value = first(field.substr(0, name_end));
  for (size_t at = name_end; at < field.size();) {
    const bool attribute = field[at] == '.';
    if (!attribute && field[at] != '[') fail("only '.' or '[' may follow ']' in a format field");
    const size_t end =
        attribute ? std::min(field.find_first_of(".[", at + 1), field.size()) : field.find(']', at);
    if (end == std::string_view::npos) fail("expected ']' in a format field");
    const std::string_view key = field.substr(at + 1, end - at - 1);
    if (key.empty()) fail("empty attribute in a format field");
    if (attribute) {
      value = get_attribute(runtime_, value, key);
    } else if (std::all_of(key.begin(), key.end(), is_decimal)) {
      size_t position = 0;
      value = get_item(runtime_, value, Value::integer(read_number(key, position)));
    } else {
      value = get_item(runtime_, value, runtime_.text(key, false));
    }
    at = attribute ? end : end + 1;
  }
  return value;
}

}  // namespace

Value percent_format(Runtime& runtime, const Value& format, const Value& arguments) {
  return runtime.text(PercentFormatter(runtime, format.text(), arguments).run());
}

Value brace_format(Runtime& runtime, const Value& format, const Arguments& arguments) {
  const Text& text = format.text();
  const std::string_view bytes = text.bytes();
  FieldLookup lookup(runtime, arguments);
  Text out;
  for (size_t at = 0; at < bytes.size();) {
    runtime.budget().step();
    check_size(out);
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.append(text, at, brace);
    at = brace;
    if (at == bytes.size()) break;
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
      out.append(text, at, at + 1);
      at += 2;
      continue;
    }
    if (bytes[at] == '}') fail("Single '}}' encountered in format string");
    const size_t close = bytes.find('}', at);
    if (close == std::string_view::npos) fail("Single '{{' encountered in format string");
    const std::string_view inner = bytes.substr(at + 1, close - at - 1);
    const size_t colon = std::min(inner.find(':'), inner.size());
    const size_t bang = std::min(inner.find('!'), colon);
    Value value = lookup.find(inner.substr(0, bang));
    if (bang < colon) {
      const std::string_view conversion = inner.substr(bang + 1, colon - bang - 1);
      if (conversion != "s" && conversion != "r")
        fail("Unknown conversion specifier '{}'", conversion);
      value = conversion == "s" ? runtime.text(to_text(runtime, value))
                                : runtime.text(repr(runtime, value), value.plain());
    }
    append_formatted(runtime, value, parse_spec(inner.substr(std::min(colon + 1, inner.size()))),
                     out);
    at = close + 1;
  }
  return runtime.text(std::move(out));
}

}  // namespace atlas::model::jinja
