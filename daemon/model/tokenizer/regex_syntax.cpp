// From Oniguruma's pattern syntax to PCRE2's. The walk knows what split patterns of published
// tokenizers use; anything else is refused by name, since a pattern that means something slightly
// different gives wrong ids without any sign.
#include <cctype>

#include "daemon/model/tokenizer/regex.h"
#include "daemon/model/tokenizer/unicode_tables.h"

namespace atlas::model {

namespace {

constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                            "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                            "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                            "Z",  "Zs", "Zl", "Zp", "Cc", "Cf"};

bool is_known_category(std::string_view name) {
  for (const std::string_view known : kCategories) {
    if (name == known) return true;
  }
  return false;
}

// What must be added to PCRE2's category so that it covers Unicode 16; text for inside [...].
std::string newer_members(std::string_view category) {
  std::string out;
  for (size_t i = 0; i < kNewerThanUnicode14Count; ++i) {
    const CategoryRange& range = kNewerThanUnicode14[i];
    if (range.category[0] != category[0]) continue;
    if (category.size() == 2 && range.category[1] != category[1]) continue;
    // A range even for one code point: a '-' that follows can then only stand for itself.
    out += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(range.first),
                       static_cast<uint32_t>(range.last));
  }
  return out;
}

std::string members(std::string_view category) {
  return fmt::format("\\p{{{}}}{}", category, newer_members(category));
}

class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      Status status;
      if (c == '\\') {
        status = escape(false);
      } else if (c == '[') {
        status = character_class();
      } else if (c == '(') {
        status = group();
      } else if (c == '{') {
        status = interval();
      } else {
        out_ += c;
        ++at_;
      }
      ATLAS_RETURN_IF_ERROR(status);
    }
    return std::move(out_);
  }

 private:
  Status unknown(std::string_view construct) const {
    return unimplemented(
        "split pattern uses {} at byte {} of '{}', which Atlas does not know; patterns of the "
        "GPT-2, "
        "Llama 3, Qwen and GPT-4o kind work",
        construct, at_, in_.substr(0, 200));
  }

  bool next_is(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  // (...) (?:...) (?i:...) (?=...) (?!...) (?<=...) (?<!...) (?>...): alike in both.
  Status group() {
    if (next_is("(*")) return unknown("(*");
    if (!next_is("(?")) {
      out_ += in_[at_++];
      return {};
    }
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (next_is(known)) {
        out_ += known;
        at_ += known.size();
        return {};
      }
    }
    return unknown(fmt::format("the group '{}'", in_.substr(at_, 4)));
  }

  // {n} {n,} {n,m} {,m}; any other brace stands for itself.
  Status interval() {
    size_t end = at_ + 1;
    std::string numbers[2];
    size_t which = 0;
    while (end < in_.size() && in_[end] != '}') {
      const char c = in_[end++];
      if (c == ',' && which == 0) {
        which = 1;
      } else if (std::isdigit(static_cast<unsigned char>(c)) && numbers[which].size() < 6) {
        numbers[which] += c;
      } else {
        which = 2;
        break;
      }
    }
    const bool counts =
        which < 2 && end < in_.size() && (!numbers[0].empty() || !numbers[1].empty());
    if (!counts) {
      out_ += "\\{";
      ++at_;
      return {};
    }
    if (end + 1 < in_.size() && (in_[end + 1] == '+' || in_[end + 1] == '?')) {
      return unknown("a '+' or '?' after an interval (they differ between dialects)");
    }
    out_ += fmt::format("{{{}{}{}}}", numbers[0].empty() ? "0" : numbers[0], which == 1 ? "," : "",
                        numbers[1]);
    at_ = end + 1;
    return {};
  }

  // \p{Name}, \P{Name}, \p{^Name}
  Status property(bool inside_class) {
    const size_t open = at_ + 2;
    const size_t close = in_.find('}', open);
    if (open >= in_.size() || in_[open] != '{' || close == std::string_view::npos) {
      return unknown("a property without {name}");
    }
    std::string_view name = in_.substr(open + 1, close - open - 1);
    bool negated = in_[at_ + 1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (!is_known_category(name)) return unknown(fmt::format("the property '{}'", name));
    ATLAS_RETURN_IF_ERROR(add_class(members(name), negated, inside_class));
    at_ = close + 1;
    return {};
  }

  Status add_class(std::string_view inside, bool negated, bool inside_class) {
    if (!inside_class) {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", inside);
    } else if (negated) {
      return unknown("a negated class inside a class");
    } else {
      out_ += inside;
    }
    return {};
  }

  // The hexadecimal digits of \xHH, \x{H...} and \uHHHH.
  Status code_point() {
    const bool braces = next_is("\\x{");
    const size_t begin = at_ + (braces ? 3 : 2);
    const size_t most = braces ? 8 : in_[at_ + 1] == 'u' ? 4 : 2;
    size_t end = begin;
    while (end < in_.size() && end - begin < most &&
           std::isxdigit(static_cast<unsigned char>(in_[end]))) {
      ++end;
    }
    const bool whole =
        braces ? end > begin && end < in_.size() && in_[end] == '}' : end - begin == most;
    if (!whole) return unknown("an unfinished code point");
    const std::string digits(in_.substr(begin, end - begin));
    const unsigned long value = std::stoul(digits, nullptr, 16);
    if (!braces && most == 2 && value >= 0x80) return unknown("a raw byte (\\x80 or more)");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      return unknown("a number that is no code point");
    }
    out_ += fmt::format("\\x{{{:x}}}", value);
    at_ = end + (braces ? 1 : 0);
    return {};
  }

  Status escape(bool inside_class) {
    if (at_ + 1 >= in_.size()) return unknown("a backslash at the end");
    const char c = in_[at_ + 1];
    switch (c) {
      case 'p':
      case 'P':
        return property(inside_class);
      case 'x':
      case 'u':
        return code_point();
      case 's':
        return shorthand("\\p{White_Space}");
      case 'S':
        return shorthand("\\P{White_Space}");
      case 'd':
      case 'D':
        return shorthand_class(members("Nd"), c == 'D', inside_class);
      case 'w':
      case 'W':
        return shorthand_class(members("L") + members("M") + members("Nd") + members("Pc"),
                               c == 'W', inside_class);
      case 'v':  // vertical tab there, any vertical white space here
        return shorthand("\\x0b");
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        return shorthand(in_.substr(at_, 2));
      case 'A':
      case 'z':
        if (!inside_class) return shorthand(in_.substr(at_, 2));
        break;
      default:
        break;
    }
    if (std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80) {
      return unknown(fmt::format("the escape '{}'", in_.substr(at_, 2)));
    }
    return shorthand(in_.substr(at_, 2));
  }

  Status shorthand(std::string_view text) {
    out_ += text;
    at_ += 2;
    return {};
  }

  Status shorthand_class(std::string_view inside, bool negated, bool inside_class) {
    ATLAS_RETURN_IF_ERROR(add_class(inside, negated, inside_class));
    at_ += 2;
    return {};
  }

  Status character_class() {
    out_ += in_[at_++];
    if (next_is("^")) out_ += in_[at_++];
    if (next_is("]")) return unknown("an empty character class");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '[') return unknown("a class inside a class");
      if (next_is("&&")) return unknown("a class intersection (&&)");
      if (in_[at_] == '\\') {
        ATLAS_RETURN_IF_ERROR(escape(true));
      } else {
        out_ += in_[at_++];
      }
    }
    if (at_ >= in_.size()) return unknown("an unfinished character class");
    out_ += in_[at_++];
    return {};
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
};

}  // namespace

Result<std::string> translate_pattern(std::string_view oniguruma) {
  return Translator(oniguruma).run();
}

}  // namespace atlas::model
