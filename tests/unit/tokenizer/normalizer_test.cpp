// NFC; the corpus in golden_test.cpp and the comparison of versions go further.
#include "daemon/model/tokenizer/normalizer.h"

#include <doctest/doctest.h>

using namespace atlas::model;

TEST_SUITE_BEGIN("tokenizer");

TEST_CASE("nfc: composes, reorders and keeps what does not compose") {
  CHECK(to_nfc("") == "");
  CHECK(to_nfc("plain") == "plain");
  CHECK(to_nfc("e\u0301") == "\u00e9");
  CHECK(to_nfc("xe\u0301y") == "x\u00e9y");
  CHECK(to_nfc("\u0301e") == "\u0301e");
  CHECK(to_nfc("a\u0301\u0316") == "\u00e1\u0316");
  CHECK(to_nfc("q\u0307\u0323") == "q\u0323\u0307");
  CHECK(to_nfc("\u1100\u1161\u11a8\uac00\u11a8") == "\uac01\uac01");
  CHECK(to_nfc("\u212b\u2126\u0958") == "\u00c5\u03a9\u0915\u093c");
  CHECK(to_nfc("\u304b\u3099\u304b") == "\u304c\u304b");
}

TEST_CASE("nfc: marks newer than the package's tables stay where they are") {
  // U+1DF6 has class 232, U+0316 class 220: today's Unicode would exchange them.
  CHECK(to_nfc("x\u1df6\u0316") == "x\u1df6\u0316");
  CHECK(to_nfc("\U00011935\U00011930") == "\U00011935\U00011930");
}

TEST_CASE("nfc: only text below U+0300 is sure to stay as it is") {
  CHECK_FALSE(may_need_nfc("plain \u00e9 \u02ff"));
  CHECK(may_need_nfc("\u0300"));
  CHECK(may_need_nfc("\U0001f600"));
}

TEST_CASE("nfc: every changed stretch is noted") {
  std::vector<TextEdit> edits;
  const std::string text = "ab e\u0301 \u6f22 o\u0308!";
  const std::string form = to_nfc(text, &edits);
  CHECK(form == "ab \u00e9 \u6f22 \u00f6!");
  REQUIRE(edits.size() == 2);
  const auto cut = [](const std::string& from, TextRange range) {
    return from.substr(range.begin, range.end - range.begin);
  };
  CHECK(cut(text, edits[0].from) == "e\u0301");
  CHECK(cut(form, edits[0].to) == "\u00e9");
  CHECK(cut(text, edits[1].from) == "o\u0308");
  CHECK(cut(form, edits[1].to) == "\u00f6");
}

TEST_SUITE_END();
