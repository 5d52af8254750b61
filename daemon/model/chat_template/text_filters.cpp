// Filters that make text or numbers of one value.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "daemon/model/chat_template/builtins.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/text_tools.h"

namespace atlas::model::jinja {
namespace {

/// The text of any value: what most filters work on.
Text input_text(Runtime& runtime, const Value& input) { return to_text(runtime, input); }

Value capitalize(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "capitalize", {}, 0);
  return runtime.text(capitalized(input_text(runtime, input)));
}

template <Case wanted>
Value change_case(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, wanted == Case::kUpper ? "upper" : "lower", {}, 0);
  return runtime.text(in_case(input_text(runtime, input), wanted));
}

/// Jinja's own idea of a title: words begin behind white space and - ( { [ <.
Value title(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "title", {}, 0);
  const auto parts_words = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  bool first = true;
  return runtime.text(rewritten(input_text(runtime, input), [&](char32_t c, std::string& out) {
    append_in_case(c, first ? Case::kUpper : Case::kLower, out);
    first = parts_words(c);
  }));
}

Value trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "trim", {"chars"}, 0);
  const bool given = bound.has(0) && !bound[0].is(Kind::kNone);
  return runtime.text(
      stripped(input_text(runtime, input), Side::kBoth, given ? &bound.text(0) : nullptr));
}

Value replace(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "replace", {"old", "new", "count"}, 2);
  const int64_t count = bound.has(2) && bound[2].is(Kind::kNone) ? -1 : bound.integer(2, -1);
  return runtime.text(replaced(runtime, input_text(runtime, input), to_text(runtime, bound[0]),
                               to_text(runtime, bound[1]), count));
}

Value string(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "string", {}, 0);
  return input.is(Kind::kText) ? input : runtime.text(to_text(runtime, input));
}

Value safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return string(runtime, input, arguments).as_markup();
}

Value escape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "escape", {}, 0);
  if (input.markup()) return input;
  return runtime.text(escaped(input_text(runtime, input))).as_markup();
}

Value format(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.keywords.empty()) {
    fail("format takes positional or keyword arguments, not both");
  }
  std::vector<std::pair<Value, Value>> named;
  for (const auto& [name, value] : arguments.keywords) {
    named.emplace_back(runtime.text(name, false), value);
  }
  const Value values =
      named.empty() ? runtime.tuple(arguments.positional) : runtime.dict(std::move(named));
  return percent_format(runtime, string(runtime, input, {}), values);
}

Value indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "indent", {"width", "first", "blank"}, 0);
  if (!input.is(Kind::kText)) {
    require_defined(input);
    fail("indent needs str, not {}", type_name(input));
  }
  Text step;
  if (bound.has(0) && bound[0].is(Kind::kText)) {
    step = bound.text(0);
  } else {
    const int64_t width = bound.integer(0, 4);
    if (width > kMaxFormatWidth) fail_limit("indent by more than {}", kMaxFormatWidth);
    step.append(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), false);
  }
  const bool blank = bound.truth(2);
  Text whole = input.text();
  whole.append("\n", false);
  Text result;
  if (bound.truth(1)) result.append(step);
  bool first = true;
  for (const Value& line : split_lines(runtime, whole, false)) {
    if (!first) {
      result.append("\n", false);
      if (blank || !line.text().empty()) result.append(step);
    }
    first = false;
    result.append(line.text());
    if (result.size() > kMaxTextBytes) break;
  }
  return runtime.text(std::move(result));
}

Value tojson(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = bound.truth(0);
  if (bound.has(1) && !bound[1].is(Kind::kNone)) {
    int64_t width = 0;
    if (bound[1].is(Kind::kText)) {
      style.indent = bound.text(1).bytes();
      width = static_cast<int64_t>(style.indent->size());
    } else {
      width = std::max<int64_t>(bound.integer(1, 0), 0);
    }
    if (width > kMaxFormatWidth) fail_limit("tojson indents by more than {}", kMaxFormatWidth);
    if (!style.indent) style.indent = std::string(static_cast<size_t>(width), ' ');
    style.item_separator.resize(1);
  }
  if (bound.has(2) && !bound[2].is(Kind::kNone)) {
    const std::vector<Value> separators = iterate(runtime, bound[2]);
    if (separators.size() != 2 || !separators[0].is(Kind::kText) ||
        !separators[1].is(Kind::kText)) {
      fail("tojson() argument 'separators' must be two strings");
    }
    style.item_separator = separators[0].text().bytes();
    style.key_separator = separators[1].text().bytes();
  }
  style.sort_keys = bound.truth(3);
  return runtime.text(to_json(runtime, input, style), input.plain());
}

std::string trimmed(const Text& text) { return stripped(text, Side::kBoth, nullptr).bytes(); }

/// Drops underscores that stand between two digits; nothing if others are there.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result.push_back(text[i]);
      continue;
    }
    const auto alphanumeric = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0;
    };
    if (i == 0 || i + 1 == text.size() || !alphanumeric(text[i - 1]) ||
        !alphanumeric(text[i + 1])) {
      return std::nullopt;
    }
  }
  return result;
}

/// int(text, base) of Python.
std::optional<Integer> parse_integer(const Text& text, int64_t base) {
  std::string digits = trimmed(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  std::string prefix = digits.substr(0, 2);
  std::transform(prefix.begin(), prefix.end(), prefix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const int64_t prefixed = prefix == "0x" ? 16 : prefix == "0o" ? 8 : prefix == "0b" ? 2 : 0;
  if (prefixed != 0 && (base == prefixed || base == 0)) {
    base = prefixed;
    digits.erase(0, 2);
    if (digits.starts_with('_')) digits.erase(0, 1);
  } else if (base == 0) {
    base = 10;
  }
  if (base < 2 || base > 36) fail("int() base must be >= 2 and <= 36, or 0");
  const auto clean = without_underscores(digits);
  if (!clean || clean->empty()) return std::nullopt;
  Integer value = 0;
  for (const char c : *clean) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 10
                      : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                             : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Integer{base}, &value) ||
        __builtin_add_overflow(value, Integer{digit}, &value)) {
      fail_limit("an integer of more than 128 bits: the interpreter has no larger ones");
    }
  }
  return negative ? -value : value;
}

/// float(text) of Python.
std::optional<double> parse_real(const Text& text) {
  const auto clean = without_underscores(trimmed(text));
  if (!clean || clean->empty()) return std::nullopt;
  std::string_view digits = *clean;
  const bool negative = digits.front() == '-';
  if (negative || digits.front() == '+') digits.remove_prefix(1);
  // from_chars knows inf, nan and digits; it would also take "nan(x)" and a second sign.
  if (digits.empty() || digits.front() == '-' || digits.find('(') != std::string_view::npos) {
    return std::nullopt;
  }
  double value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (parsed.ptr != digits.data() + digits.size()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) {
    const size_t exponent = digits.find_first_of("eE");
    const bool small = exponent != std::string_view::npos && digits[exponent + 1] == '-';
    value = small ? 0.0 : HUGE_VAL;
  } else if (parsed.ec != std::errc{}) {
    return std::nullopt;
  }
  return negative ? -value : value;
}

/// Whole part of a real; nothing for what has none.
std::optional<Integer> truncated(double value) {
  if (!(std::abs(value) < 1.7e38)) return std::nullopt;
  return static_cast<Integer>(value);
}

Value to_int(Runtime&, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "int", {"default", "base"}, 0);
  const Value otherwise = bound.get(0, Value::integer(0, input.plain()));
  if (input.is_integral()) return Value::integer(input.as_integer(), input.plain());
  if (input.is(Kind::kFloat)) {
    if (std::isinf(input.as_real())) fail("cannot convert float infinity to integer");
    const auto whole = truncated(input.as_real());
    return whole ? Value::integer(*whole, input.plain()) : otherwise;
  }
  if (!input.is(Kind::kText)) {
    require_defined(input);
    return otherwise;
  }
  if (const auto whole = parse_integer(input.text(), bound.integer(1, 10))) {
    return Value::integer(*whole, input.plain());
  }
  const auto real = parse_real(input.text());
  const auto whole = real ? truncated(*real) : std::nullopt;
  return whole ? Value::integer(*whole, input.plain()) : otherwise;
}

Value to_float(Runtime&, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "float", {"default"}, 0);
  if (input.is_number()) return Value::real(input.as_real(), input.plain());
  if (input.is(Kind::kText)) {
    if (const auto real = parse_real(input.text())) return Value::real(*real, input.plain());
  } else {
    require_defined(input);
  }
  return bound.get(0, Value::real(0.0, input.plain()));
}

Value absolute(Runtime&, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "abs", {}, 0);
  if (input.is(Kind::kFloat)) return Value::real(std::abs(input.as_real()), input.plain());
  if (!input.is_integral()) {
    require_defined(input);
    fail("bad operand type for abs(): '{}'", type_name(input));
  }
  return input.as_integer() < 0 ? negate(input) : Value::integer(input.as_integer(), input.plain());
}

/// Half to even, on the exact value of the float, as round() of Python.
double round_half_even(double value, int64_t precision) {
  if (precision > 308) return value;
  if (precision < 0) {
    const double power = std::pow(10.0, static_cast<double>(std::min<int64_t>(-precision, 308)));
    return std::nearbyint(value / power) * power;
  }
  const std::string digits = fmt::format("{:.{}f}", value, static_cast<int>(precision));
  double rounded = value;
  std::from_chars(digits.data(), digits.data() + digits.size(), rounded);
  return rounded;
}

Integer round_integer(Integer value, int64_t precision) {
  if (precision >= 0) return value;
  Integer power = 1;
  for (int64_t i = 0; i < -precision; ++i) {
    if (__builtin_mul_overflow(power, Integer{10}, &power)) return 0;
  }
  Integer whole = value / power;
  const Integer rest = value % power < 0 ? -(value % power) : value % power;
  const bool up = rest > power - rest || (rest == power - rest && whole % 2 != 0);
  if (up) whole += value < 0 ? -1 : 1;
  return whole * power;
}

Value round_filter(Runtime&, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "round", {"precision", "method"}, 0);
  if (!input.is_number()) {
    require_defined(input);
    fail("type {} doesn't define __round__ method", type_name(input));
  }
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.has(1) ? bound.text(1).bytes() : "common";
  const bool whole = input.is_integral();
  if (method == "common") {
    if (whole) return Value::integer(round_integer(input.as_integer(), precision), input.plain());
    if (!std::isfinite(input.as_real())) return input;
    return Value::real(round_half_even(input.as_real(), precision), input.plain());
  }
  if (method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  const double power =
      std::pow(10.0, static_cast<double>(std::clamp<int64_t>(precision, -308, 308)));
  const double scaled = input.as_real() * power;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power,
                     input.plain());
}

Value default_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "default", {"default_value", "boolean"}, 0);
  const bool missing = input.is(Kind::kUndefined) || (bound.truth(1) && !truthy(input));
  if (!missing) return input;
  return bound.has(0) ? bound[0] : runtime.text("", false);
}

Value attr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "attr", {"name"}, 1);
  // Unlike `.name`, it does not look among the items of a dict.
  const std::string& name = bound.text(0).bytes();
  require_defined(input);
  if (input.is(Kind::kDict) && find_method(input, name) == nullptr) {
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return get_attribute(runtime, input, name);
}

constexpr Filter kFilters[] = {
    {"abs", absolute},
    {"attr", attr},
    {"capitalize", capitalize},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape},
    {"escape", escape},
    {"float", to_float},
    {"format", format},
    {"indent", indent},
    {"int", to_int},
    {"lower", change_case<Case::kLower>},
    {"replace", replace},
    {"round", round_filter},
    {"safe", safe},
    {"string", string},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"upper", change_case<Case::kUpper>},
};

}  // namespace

const Filter* find_text_filter(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                         [name](const Filter& f) { return f.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

std::string text_filter_names() {
  std::string names;
  for (const Filter& filter : kFilters) names += fmt::format("{}, ", filter.name);
  return names;
}

}  // namespace atlas::model::jinja
