// Ids and texts of the `tokenizers` Python package, text by text.
#include <doctest/doctest.h>

#include <ctime>

#include "tests/unit/tokenizer/fixtures.h"

using namespace atlas::model;
using namespace atlas::model::testing;

namespace {

// Of the processor, so that a busy machine does not count.
double seconds_used() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// As make_golden.py makes them.
std::string large_text(const std::string& name) {
  if (name == "a") return std::string(1'000'000, 'a');
  if (name == "space") return std::string(1'000'000, ' ');
  std::string out;
  if (name == "marks") {
    out = "e";
    for (int i = 0; i < 100'000; ++i) out += "\xCC\x81\xCC\x96";
  } else if (name == "letters") {
    uint32_t state = 1;
    for (int i = 0; i < 200'000; ++i) {
      state = state * 1664525 + 1013904223;
      out += "etaoinshrdlu"[(state >> 16) % 12];
    }
  }
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("tokenizer");

TEST_CASE("golden: every text of the corpus has the package's ids") {
  for (const std::string& name : tokenizer_names()) {
    const Expected& want = expected(name);
    REQUIRE(want.ids.size() == corpus().size());
    for (size_t i = 0; i < corpus().size(); ++i) {
      INFO(name << ": " << corpus()[i].name);
      CHECK(tokenizer(name).encode(corpus()[i].text) == want.ids[i]);
    }
  }
}

TEST_CASE("golden: without special tokens every text is the package's plain text") {
  for (const std::string& name : tokenizer_names()) {
    for (size_t i = 0; i < corpus().size(); ++i) {
      INFO(name << ": " << corpus()[i].name);
      const std::string& text = corpus()[i].text;
      CHECK(tokenizer(name).encode(text, {.parse_special = false}) == expected(name).plain[i]);
      const TextRange all{0, text.size()};
      CHECK(tokenizer(name).encode(text, {}, {&all, 1}) == expected(name).plain[i]);
    }
  }
}

TEST_CASE("golden: decoding gives the package's text, at once and token by token") {
  for (const std::string& name : tokenizer_names()) {
    const Expected& want = expected(name);
    for (size_t i = 0; i < corpus().size(); ++i) {
      INFO(name << ": " << corpus()[i].name);
      const auto other = want.decoded.find(corpus()[i].name);
      const std::string& text = other == want.decoded.end() ? corpus()[i].text : other->second;
      CHECK(tokenizer(name).decode(want.ids[i], false) == text);
      StreamDecoder stream(tokenizer(name), false);
      std::string streamed;
      for (const TokenId id : want.ids[i]) streamed += stream.push(id);
      CHECK(streamed + stream.finish() == text);
    }
  }
}

TEST_CASE("golden: a megabyte without a break is encoded in well under a second") {
  for (const std::string name : {"smollm2", "qwen2"}) {
    for (const auto& [text, want] : expected(name).large) {
      INFO(name << ": " << text);
      const std::string input = large_text(text);
      const double begin = seconds_used();
      const std::vector<TokenId> ids = tokenizer(name).encode(input);
      const double seconds = seconds_used() - begin;
      CHECK(ids.size() == want.count);
      CHECK(hash_ids(ids) == want.hash);
      // 0.03 to 0.2 s in a release build; what grows quadratically takes minutes.
      CHECK(seconds < 5.0);
    }
  }
}

TEST_SUITE_END();
