// Decoding, repairing, ranges.
#include "daemon/model/tokenizer/utf8.h"

#include <doctest/doctest.h>

#include <random>

using namespace atlas::model;

namespace {

std::string repaired(std::string_view bytes) {
  std::string out;
  append_as_utf8(out, bytes);
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("tokenizer");

TEST_CASE("utf8: each maximal part of a character becomes one U+FFFD") {
  const std::string r = "\xEF\xBF\xBD";
  CHECK(repaired("plain \xC3\xA9") == "plain \xC3\xA9");
  CHECK(repaired("\x80") == r);
  CHECK(repaired("\xC0\xAF") == r + r);                     // overlong
  CHECK(repaired("\xE0\x80\x80") == r + r + r);             // overlong
  CHECK(repaired("\xED\xA0\x80") == r + r + r);             // surrogate
  CHECK(repaired("\xF4\x90\x80\x80") == r + r + r + r);     // beyond U+10FFFF
  CHECK(repaired("\xF0\x9F\x98") == r);                     // cut off at the end
  CHECK(repaired("\xF0\x9F\x98x\xE2\x82") == r + "x" + r);  // cut off inside
  CHECK(repaired("\xF5\xFF\xFE") == r + r + r);
  CHECK(repaired("\xF4\x8F\xBF\xBF") == "\xF4\x8F\xBF\xBF");  // the last code point
}

TEST_CASE("utf8: an incomplete character at the end can be kept back, a bad one cannot") {
  std::string out;
  CHECK(append_as_utf8(out, "a\xF0\x9F\x98", true) == 1);
  CHECK(out == "a");
  out.clear();
  CHECK(append_as_utf8(out, "a\xF0\x28", true) == 3);
  CHECK(out == "a\xEF\xBF\xBD(");
}

TEST_CASE("utf8: decoding backwards meets the same code points") {
  const std::string text = "aé漢😀\x7F";
  std::vector<char32_t> forward, backward;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    CHECK(c.kind == CodePoint::kValid);
    forward.push_back(c.value);
    at += c.size;
  }
  for (size_t end = text.size(); end > 0;) {
    const CodePoint c = decode_utf8_before(text, end);
    backward.insert(backward.begin(), c.value);
    end -= c.size;
  }
  CHECK(forward == std::vector<char32_t>{U'a', U'é', U'漢', U'😀', 0x7F});
  CHECK(backward == forward);
}

TEST_CASE("utf8: repaired random bytes are valid, and ranges still cover what they covered") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 24, ' ');
    const char* const alphabet[] = {"a", "\xC3", "\xA9", "\xF0", "\x9F", "\xED", "\xE2", "\xFF"};
    for (char& c : bytes) c = alphabet[random() % 8][0];
    std::vector<TextEdit> edits;
    const std::string fixed = repair_utf8(bytes, edits);
    INFO("round " << round);
    CHECK(fixed == repaired(bytes));
    CHECK(valid_utf8_prefix(fixed) == fixed.size());
    // Mark the first half: repairing the unmarked tail alone gives the unmarked tail, unless the
    // border cuts a character, which then belongs to the marked half.
    const TextRange half{0, bytes.size() / 2};
    if (half.end == 0) continue;
    const TextRange mapped = map_ranges({&half, 1}, edits)[0];
    CHECK(mapped.begin == 0);
    CHECK(fixed.size() - mapped.end <= repaired(std::string_view(bytes).substr(half.end)).size());
    CHECK(mapped.end >= valid_utf8_prefix(std::string_view(bytes).substr(0, half.end)));
  }
}

TEST_CASE("utf8: a range that touches a replaced stretch covers all of it") {
  // "ab[XX]cd" became "ab[YYY]cd".
  const TextEdit edit{{2, 4}, {2, 5}};
  const auto mapped = [&](size_t begin, size_t end) {
    const TextRange range{begin, end};
    const TextRange out = map_ranges({&range, 1}, {&edit, 1})[0];
    return std::pair(out.begin, out.end);
  };
  CHECK(mapped(0, 2) == std::pair<size_t, size_t>(0, 2));
  CHECK(mapped(0, 3) == std::pair<size_t, size_t>(0, 5));
  CHECK(mapped(3, 4) == std::pair<size_t, size_t>(2, 5));
  CHECK(mapped(3, 6) == std::pair<size_t, size_t>(2, 7));
  CHECK(mapped(4, 6) == std::pair<size_t, size_t>(5, 7));
}

TEST_CASE("utf8: ranges are cut, sorted and joined") {
  const TextRange untidy[] = {{8, 99}, {3, 3}, {5, 7}, {0, 2}, {6, 8}, {4, 1}, {20, 30}};
  const std::vector<TextRange> tidy = tidy_ranges(untidy, 10);
  REQUIRE(tidy.size() == 2);
  CHECK(tidy[0].begin == 0);
  CHECK(tidy[0].end == 2);
  CHECK(tidy[1].begin == 5);
  CHECK(tidy[1].end == 10);
}

TEST_CASE("utf8: numeric is every kind of number, up to Unicode 17") {
  int count = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) count += is_numeric(c);
  CHECK(count == 1924);  // what the package's Digits isolates
  for (const char32_t c : {U'7', U'\u00bd', U'\u0665', U'\u2160', U'\u3007', U'\U00010d40',
                           U'\U00011de0', U'\U0001d7d8'}) {
    CHECK(is_numeric(c));
  }
  for (const char32_t c : {U'a', U'\u4e00', U'\u24b6', U'\uffff'}) CHECK_FALSE(is_numeric(c));
}

TEST_CASE("utf8: 25 code points are white space") {
  int count = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) count += is_white_space(c);
  CHECK(count == 25);
  CHECK_FALSE(is_white_space(0x180E));
  CHECK_FALSE(is_white_space(0x200B));
}

TEST_SUITE_END();
