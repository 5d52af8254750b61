// Merging against a merge that is plainly right: look at all pairs, take the best, start over.
#include "daemon/model/tokenizer/byte_pairs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

using namespace atlas::model;

namespace {

std::vector<TokenId> plainly_merged(std::string_view word, const BytePairRules& rules) {
  std::vector<TokenId> ids;
  for (const char c : word) ids.push_back(*rules.bytes[static_cast<uint8_t>(c)]);
  while (true) {
    size_t best = rules.merges.size(), at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (rules.merges[rank].left != ids[i] || rules.merges[rank].right != ids[i + 1]) continue;
        best = rank;
        at = i;
      }
    }
    if (best == rules.merges.size()) return ids;
    ids[at] = rules.merges[best].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

// Rules over the letters a, b, c in no sensible order: pairs of any two tokens made so far.
BytePairRules random_rules(std::mt19937& random) {
  BytePairRules rules;
  std::vector<std::string> texts = {"a", "b", "c"};
  for (TokenId id = 0; id < 3; ++id) rules.bytes['a' + id] = id;
  for (int i = 0; i < 30; ++i) {
    const TokenId left = random() % texts.size(), right = random() % texts.size();
    const std::string text = texts[left] + texts[right];
    const auto known = std::find(texts.begin(), texts.end(), text);
    if (text.size() > 8) continue;
    const auto id = static_cast<TokenId>(known - texts.begin());
    if (known == texts.end()) texts.push_back(text);
    rules.merges.push_back({left, right, id});
  }
  std::shuffle(rules.merges.begin(), rules.merges.end(), random);
  // A pair named twice would keep its last rank.
  std::vector<Merge> once;
  for (const Merge& merge : rules.merges) {
    const bool known = std::any_of(once.begin(), once.end(), [&](const Merge& other) {
      return other.left == merge.left && other.right == merge.right;
    });
    if (!known) once.push_back(merge);
  }
  rules.merges = once;
  return rules;
}

std::vector<TokenId> encoded(const BytePairEncoder& encoder, std::string_view word) {
  BytePairEncoder::Scratch scratch(word.size());
  std::vector<TokenId> out;
  encoder.encode(word, scratch, out);
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("tokenizer");

TEST_CASE("merging: short and long words come out as one merge at a time would have them") {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    const BytePairRules rules = random_rules(random);
    const BytePairEncoder encoder(rules);
    std::string word(1 + random() % (round % 4 == 0 ? 300 : 40), ' ');
    const unsigned letters = 1 + random() % 3;
    for (char& c : word) c = static_cast<char>('a' + random() % letters);
    INFO("round " << round << ": " << word);
    CHECK(encoded(encoder, word) == plainly_merged(word, rules));
  }
}

TEST_CASE("merging: words seen before give the same ids again") {
  std::mt19937 random(12);
  const BytePairRules rules = random_rules(random);
  const BytePairEncoder encoder(rules);
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + random() % 3);
  BytePairEncoder::Scratch scratch(64);
  std::vector<TokenId> together, apart;
  for (size_t at = 0; at + 8 < text.size(); at += 2) {
    const std::string_view word = std::string_view(text).substr(at, 1 + at % 7);
    encoder.encode(word, scratch, together);
    const std::vector<TokenId> ids = plainly_merged(word, rules);
    apart.insert(apart.end(), ids.begin(), ids.end());
  }
  CHECK(together == apart);
}

TEST_CASE("merging: of two ranks of one pair the last counts") {
  BytePairRules rules;
  for (TokenId id = 0; id < 3; ++id) rules.bytes['a' + id] = id;
  rules.merges = {{0, 1, 3}, {1, 2, 4}, {0, 1, 3}};
  CHECK(encoded(BytePairEncoder(rules), "abc") == std::vector<TokenId>{0, 4});
}

TEST_CASE("merging: a byte without token is dropped, or is the unknown token") {
  BytePairRules rules;
  rules.bytes['a'] = 0;
  rules.bytes['b'] = 1;
  rules.merges = {{0, 1, 2}};
  CHECK(encoded(BytePairEncoder(rules), "axb") == std::vector<TokenId>{2});
  CHECK(encoded(BytePairEncoder(rules), "x").empty());
  rules.unknown = 9;
  CHECK(encoded(BytePairEncoder(rules), "axxb") == std::vector<TokenId>{0, 9, 9, 1});
  rules.fuse_unknown = true;
  CHECK(encoded(BytePairEncoder(rules), "axxbx") == std::vector<TokenId>{0, 9, 1, 9});
}

TEST_CASE("merging: whole words go first if the model says so") {
  BytePairRules rules;
  for (TokenId id = 0; id < 3; ++id) rules.bytes['a' + id] = id;
  rules.merges = {{0, 1, 3}};
  BytePairEncoder encoder(rules);
  encoder.set_whole_words({{"abc", 7}});
  CHECK(encoded(encoder, "abc") == std::vector<TokenId>{7});
  CHECK(encoded(encoder, "abcc") == std::vector<TokenId>{3, 2, 2});
}

TEST_SUITE_END();
