// str, repr and JSON of values, letter for letter as Python writes them.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/loop.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/unicode.h"

namespace atlas::model::jinja {
namespace {

/// Namespaces may hold themselves, so that what prints them has to count.
constexpr uint32_t kMaxPrintDepth = kMaxValueDepth + 56;

void append_integer(Integer value, std::string& out) {
  fmt::format_to(std::back_inserter(out), "{}", value);
}

[[noreturn]] void fail_size() {
  fail_limit("the template prints a value of more than {} MiB", kMaxTextBytes >> 20);
}

/// Writes values as repr does, with an eye on the size of the result.
class Printer {
 public:
  explicit Printer(Runtime& runtime) : runtime_(runtime) {}

  void value(const Value& value);
  std::string take() { return std::move(out_); }

 private:
  void items(std::string_view open, const std::vector<Value>& items, std::string_view close);
  void dict(const DictObject& dict);
  void view(const Value& value);
  void quoted(std::string_view text);
  void check_size() const {
    if (out_.size() > kMaxTextBytes) fail_size();
  }

  Runtime& runtime_;
  std::string out_;
  uint32_t depth_ = 0;
};

void Printer::quoted(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos;
  const char quote = single || text.find('"') != std::string_view::npos ? '\'' : '"';
  out_.push_back(quote);
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    check_size();
    const char32_t c = next_code_point(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out_.push_back('\\');
      out_.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out_ += "\\n";
    } else if (c == '\r') {
      out_ += "\\r";
    } else if (c == '\t') {
      out_ += "\\t";
    } else if (is_printable(c)) {
      out_.append(text.substr(begin, i - begin));
    } else if (c < 0x100) {
      out_ += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out_ += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out_ += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out_.push_back(quote);
}

void Printer::items(std::string_view open, const std::vector<Value>& items,
                    std::string_view close) {
  out_ += open;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out_ += ", ";
    value(items[i]);
  }
  out_ += close;
}

void Printer::dict(const DictObject& dict) {
  out_.push_back('{');
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out_ += ", ";
    value(dict.items[i].first);
    out_ += ": ";
    value(dict.items[i].second);
  }
  out_.push_back('}');
}

void Printer::view(const Value& value) {
  out_ += type_name(value);
  out_.push_back('(');
  items("[", iterate(runtime_, value), "]");
  out_.push_back(')');
}

void Printer::value(const Value& value) {
  if (depth_ >= kMaxPrintDepth) fail_limit("a value is nested too deep to be printed");
  ++depth_;
  runtime_.budget().step();
  check_size();
  switch (value.kind()) {
    case Kind::kUndefined:
      out_ += "Undefined";
      break;
    case Kind::kNone:
      out_ += "None";
      break;
    case Kind::kBoolean:
      out_ += value.as_boolean() ? "True" : "False";
      break;
    case Kind::kInteger:
      append_integer(value.as_integer(), out_);
      break;
    case Kind::kFloat:
      out_ += float_text(value.as_real());
      break;
    case Kind::kText:
      quoted(value.text().bytes());
      break;
    case Kind::kList:
      items("[", value.items(), "]");
      break;
    case Kind::kTuple:
      items("(", value.items(), value.items().size() == 1 ? ",)" : ")");
      break;
    case Kind::kDict:
      dict(value.dict());
      break;
    case Kind::kView:
      view(value);
      break;
    case Kind::kRange: {
      const RangeObject& range = value.range();
      out_ += fmt::format("range({}, {}", range.start, range.stop);
      out_ += range.step == 1 ? ")" : fmt::format(", {})", range.step);
      break;
    }
    case Kind::kNamespace: {
      out_ += "<Namespace {";
      bool first = true;
      for (const auto& [name, attribute] : value.attributes().attributes) {
        if (!first) out_ += ", ";
        first = false;
        quoted(name);
        out_ += ": ";
        this->value(attribute);
      }
      out_ += "}>";
      break;
    }
    case Kind::kLoop:
      out_ +=
          fmt::format("<LoopContext {}/{}>", loop_of(value).index0 + 1, loop_of(value).length());
      break;
    case Kind::kIterator:
      fail("an iterator cannot be printed: put '| list' or '| join' behind it");
    case Kind::kMacro:
    case Kind::kFunction:
      fail("a {} cannot be printed: call it with ()",
           value.is(Kind::kMacro) ? "macro" : "function");
  }
  --depth_;
}

/// Writes JSON as json.dumps does.
class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void value(const Value& value);
  std::string take() { return std::move(out_); }

 private:
  void string(std::string_view text);
  void key(const Value& key);
  void number(const Value& value);
  void sequence(const std::vector<Value>& items);
  void dict(const DictObject& dict);
  void new_line() {
    if (!style_.indent) return;
    out_.push_back('\n');
    for (uint32_t i = 0; i < depth_; ++i) out_ += *style_.indent;
  }
  void check_size() const {
    if (out_.size() > kMaxTextBytes) fail_size();
  }
  void escape(uint32_t unit) { out_ += fmt::format("\\u{:04x}", unit); }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
  uint32_t depth_ = 0;
};

void JsonWriter::string(std::string_view text) {
  out_.push_back('"');
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    check_size();
    const char32_t c = next_code_point(text, i);
    switch (c) {
      case '"':
        out_ += "\\\"";
        continue;
      case '\\':
        out_ += "\\\\";
        continue;
      case '\n':
        out_ += "\\n";
        continue;
      case '\r':
        out_ += "\\r";
        continue;
      case '\t':
        out_ += "\\t";
        continue;
      case '\f':
        out_ += "\\f";
        continue;
      case '\b':
        out_ += "\\b";
        continue;
      default:
        break;
    }
    if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
      escape(c);
    } else if (style_.ensure_ascii && c >= 0x10000) {
      escape(0xD800 + ((c - 0x10000) >> 10));
      escape(0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      out_.append(text.substr(begin, i - begin));
    }
  }
  out_.push_back('"');
}

void JsonWriter::number(const Value& value) {
  if (value.is(Kind::kBoolean)) {
    out_ += value.as_boolean() ? "true" : "false";
  } else if (value.is(Kind::kInteger)) {
    append_integer(value.as_integer(), out_);
  } else if (std::isnan(value.as_real())) {
    out_ += "NaN";
  } else if (std::isinf(value.as_real())) {
    out_ += value.as_real() > 0 ? "Infinity" : "-Infinity";
  } else {
    out_ += float_text(value.as_real());
  }
}

void JsonWriter::key(const Value& key) {
  if (key.is(Kind::kText)) {
    string(key.text().bytes());
    return;
  }
  if (!key.is_number() && !key.is(Kind::kNone)) {
    fail("keys must be str, int, float, bool or None, not {}", type_name(key));
  }
  out_.push_back('"');
  if (key.is(Kind::kNone)) {
    out_ += "null";
  } else {
    number(key);
  }
  out_.push_back('"');
}

void JsonWriter::sequence(const std::vector<Value>& items) {
  if (items.empty()) {
    out_ += "[]";
    return;
  }
  out_.push_back('[');
  ++depth_;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out_ += style_.item_separator;
    new_line();
    value(items[i]);
  }
  --depth_;
  new_line();
  out_.push_back(']');
}

void JsonWriter::dict(const DictObject& dict) {
  if (dict.items.empty()) {
    out_ += "{}";
    return;
  }
  std::vector<const std::pair<Value, Value>*> pairs;
  for (const auto& pair : dict.items) pairs.push_back(&pair);
  if (style_.sort_keys) {
    std::stable_sort(pairs.begin(), pairs.end(), [this](const auto* left, const auto* right) {
      return less(runtime_, left->first, right->first);
    });
  }
  out_.push_back('{');
  ++depth_;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i > 0) out_ += style_.item_separator;
    new_line();
    key(pairs[i]->first);
    out_ += style_.key_separator;
    value(pairs[i]->second);
  }
  --depth_;
  new_line();
  out_.push_back('}');
}

void JsonWriter::value(const Value& value) {
  runtime_.budget().step();
  check_size();
  switch (value.kind()) {
    case Kind::kNone:
      out_ += "null";
      return;
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kFloat:
      number(value);
      return;
    case Kind::kText:
      string(value.text().bytes());
      return;
    case Kind::kList:
    case Kind::kTuple:
      sequence(value.items());
      return;
    case Kind::kDict:
      dict(value.dict());
      return;
    default:
      fail("Object of type {} is not JSON serializable", type_name(value));
  }
}

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto written =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view scientific(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = scientific.find('e');
  std::string digits(scientific.substr(0, e));
  int exponent = 0;
  const std::string_view power = scientific.substr(e + (scientific[e + 1] == '+' ? 2 : 1));
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  // repr turns to exponents where the point would stand outside of 16 digits.
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", digits, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const std::string sign = digits.front() == '-' ? "-" : "";
  std::erase_if(digits, [](char c) { return c == '-' || c == '.'; });
  if (exponent < 0) {
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string repr(Runtime& runtime, const Value& value) {
  Printer printer(runtime);
  printer.value(value);
  std::string result = printer.take();
  runtime.budget().work(result.size());
  return result;
}

Text to_text(Runtime& runtime, const Value& value) {
  if (value.is(Kind::kText)) {
    runtime.budget().work(value.text().size());
    return value.text();
  }
  if (value.is(Kind::kUndefined)) return {};
  // What a namespace holds may have come from anywhere.
  const bool plain = value.plain() || value.is(Kind::kNamespace);
  return {repr(runtime, value), plain};
}

std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.value(value);
  std::string result = writer.take();
  runtime.budget().work(result.size());
  return result;
}

}  // namespace atlas::model::jinja
