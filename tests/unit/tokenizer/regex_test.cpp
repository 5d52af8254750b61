// Split patterns: what is translated, what is refused, what matches.
#include "daemon/model/tokenizer/regex.h"

#include <doctest/doctest.h>

#include <vector>

using namespace atlas;
using namespace atlas::model;

namespace {

// All matches of a pattern, or its error.
std::vector<std::string> matches(std::string_view pattern, const std::string& text) {
  const Result<Regex> regex = Regex::compile(pattern);
  if (!regex) return {regex.error().to_string()};
  Regex::Scratch scratch;
  std::vector<std::string> out;
  for (size_t from = 0; from < text.size();) {
    const auto match = regex->find(text, from, scratch);
    if (!match) break;
    out.push_back(text.substr(match->begin, match->end - match->begin));
    from = std::max(match->end, from + 1);
  }
  return out;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_SUITE_BEGIN("tokenizer");

TEST_CASE("regex: white space is the Unicode property, without U+180E") {
  CHECK(matches(R"(\s+)", "a \u3000\u0085b\u180ec\u200bd") == Strings{" \u3000\u0085"});
  CHECK(matches(R"(\S+)", "a \u180eb") == Strings{"a", "\u180eb"});
  CHECK(matches(R"([^\s]+)", "a b") == Strings{"a", "b"});
  CHECK(matches(R"([\S]+)", "a b") == Strings{"a", "b"});
}

TEST_CASE("regex: categories know Unicode 16, whatever PCRE2 knows") {
  CHECK(matches(R"(\p{L}+)", "-\U00031350a\ua7cb-") == Strings{"\U00031350a\ua7cb"});
  CHECK(matches(R"(\p{Lu})", "\u1c89\u1c8a") == Strings{"\u1c89"});
  CHECK(matches(R"(\P{L}+)", "a-\U00031350") == Strings{"-"});
  CHECK(matches(R"(\p{^N}+)", "1a\U00010d40") == Strings{"a"});
  CHECK(matches(R"([^\p{L}\p{N}]+)", "a\U00010d40+\U0001e5d0") == Strings{"+"});
  CHECK(matches(R"(\d)", "a1\U00011f50\u00b2") == Strings{"1", "\U00011f50"});
  CHECK(matches(R"(\w+)", "e\u0301_1 \u00b2") == Strings{"e\u0301_1"});
}

TEST_CASE("regex: a hyphen behind a category stands for itself") {
  CHECK(matches(R"([\p{Pd}-x]+)", "w-x\u2014y") == Strings{"-x\u2014"});
  CHECK(matches(R"([\d\-.]+)", "a1-.b") == Strings{"1-."});
}

TEST_CASE("regex: letters fold their case beyond ASCII in (?i:)") {
  CHECK(matches(R"((?i:'s))", "'s'S'\u017f") == Strings{"'s", "'S", "'\u017f"});
}

TEST_CASE("regex: intervals and braces") {
  CHECK(matches(R"(\p{N}{1,3})", "12345") == Strings{"123", "45"});
  CHECK(matches(R"(a{,2}b)", "aaab") == Strings{"aab"});
  CHECK(matches(R"(a{2})", "aaa") == Strings{"aa"});
  CHECK(matches(R"(a{2,})", "aaa") == Strings{"aaa"});
  CHECK(matches(R"({x})", "a{x}") == Strings{"{x}"});
  CHECK(matches(R"(a{})", "a{}") == Strings{"a{}"});
}

TEST_CASE("regex: anchors are those of lines, and escapes those of Oniguruma") {
  CHECK(matches(R"(\s+$)", "a  \nb ") == Strings{"  ", " "});
  CHECK(matches(R"(^.)", "ab\ncd") == Strings{"a", "c"});
  CHECK(matches(R"(\v)", "a\x0b\n") == Strings{"\x0b"});
  CHECK(matches(R"(\u00e9\x{1F600}\x41)", "\u00e9\U0001f600A") == Strings{"\u00e9\U0001f600A"});
  CHECK(matches(R"([\[\]\/\\])", "a[]/\\") == Strings{"[", "]", "/", "\\"});
}

TEST_CASE("regex: what is not known is refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {R"([a&&b])", "intersection"},
      {R"([a[bc]])", "class inside a class"},
      {R"([[:alpha:]])", "class inside a class"},
      {R"(\p{Han})", "'Han'"},
      {R"(\p{Cn})", "'Cn'"},
      {R"((a)\1)", R"('\1')"},
      {R"(\bx)", R"('\b')"},
      {R"(\K)", R"('\K')"},
      {R"(\R)", R"('\R')"},
      {R"((?<name>a))", "(?<n"},
      {R"((?m:a))", "(?m:"},
      {R"((*ACCEPT))", "(*"},
      {R"(a{2}+)", "interval"},
      {R"(a{1,2}?)", "interval"},
      {R"([^\P{L}x])", "negated class inside a class"},
      {R"([])", "empty character class"},
      {R"([a)", "unfinished character class"},
      {R"(a\)", "backslash at the end"},
      {R"(\pL)", "property without"},
      {R"(\xff)", "raw byte"},
      {R"(\x{110000})", "no code point"},
      {R"(\ud800)", "no code point"},
      {R"(\u12)", "unfinished code point"}};
  for (const auto& [pattern, reason] : cases) {
    INFO(pattern);
    const auto regex = Regex::compile(pattern);
    REQUIRE_FALSE(regex);
    CHECK(regex.error().code() == Code::kUnimplemented);
    CHECK_MESSAGE(regex.error().message().find(reason) != std::string::npos,
                  regex.error().message());
  }
}

TEST_CASE("regex: a malformed pattern is an error with its place") {
  for (const char* pattern : {"(a", "a)", "*a", "(?<=a+)b"}) {
    const auto regex = Regex::compile(pattern);
    REQUIRE_FALSE(regex);
    CHECK(regex.error().code() == Code::kInvalidArgument);
    CHECK(regex.error().message().find("at byte") != std::string::npos);
  }
  CHECK_FALSE(Regex::compile(std::string(70'000, 'a')));
  CHECK_FALSE(Regex::compile(std::string(1'000, '(') + "a" + std::string(1'000, ')')));
  CHECK_FALSE(Regex::compile("(?:(?:a{0,9999}b){0,9999}c){0,9999}"));
  CHECK_FALSE(Regex::compile_literal(""));
}

TEST_CASE("regex: literal text is not a pattern") {
  const auto regex = Regex::compile_literal("a.+");
  REQUIRE(regex);
  Regex::Scratch scratch;
  CHECK_FALSE(regex->find("abb", 0, scratch));
  CHECK(regex->find("xa.+", 0, scratch)->begin == 1);
}

TEST_CASE(
    "regex: a long match of groups works although it needs more than the machine code's stack") {
  const auto regex = Regex::compile("(?:a|b)+");
  REQUIRE(regex);
  Regex::Scratch scratch;
  const auto match = regex->find(std::string(100'000, 'b'), 0, scratch);
  REQUIRE(match);
  CHECK(match->end == 100'000);
}

TEST_CASE("regex: a pattern that would search for ever gives up") {
  const auto regex = Regex::compile(R"((?:(?:a|b|ab)+)+c)");
  REQUIRE(regex);
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "ab";
  Regex::Scratch scratch;
  CHECK_FALSE(regex->find(text, 0, scratch));
}

TEST_SUITE_END();
