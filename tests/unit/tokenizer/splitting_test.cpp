// Pre-tokenizer steps and added tokens.
#include <doctest/doctest.h>

#include "daemon/model/tokenizer/added_tokens.h"
#include "daemon/model/tokenizer/pre_tokenizer.h"

using namespace atlas;
using namespace atlas::model;

namespace {

using Strings = std::vector<std::string>;

Strings split(const std::vector<SplitStep>& steps, std::string_view text) {
  const auto splitter = PreTokenizer::compile(steps);
  if (!splitter) return {splitter.error().to_string()};
  PreTokenizer::Scratch scratch;
  std::vector<std::string_view> words;
  splitter->split(text, scratch, words);
  return {words.begin(), words.end()};
}

SplitStep on(const char* pattern, SplitBehavior behavior, bool invert = false) {
  return {SplitStep::Kind::kRegex, pattern, behavior, invert};
}

// Segments as text; tokens as [id].
Strings find(const AddedTokenFinder& finder, std::string_view text,
             const std::vector<TextRange>& plain = {}) {
  Strings out;
  for (const TextSegment& segment : finder.split(text, plain)) {
    std::string piece(text.substr(segment.range.begin, segment.range.end - segment.range.begin));
    out.push_back(segment.token ? "[" + std::to_string(*segment.token) + "]" + piece : piece);
  }
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("tokenizer");

TEST_CASE("split: every behavior, with matches side by side and at both ends") {
  const std::string_view text = "-a--b-";
  CHECK(split({on("-", SplitBehavior::kIsolated)}, text) == Strings{"-", "a", "-", "-", "b", "-"});
  CHECK(split({on("-", SplitBehavior::kRemoved)}, text) == Strings{"a", "b"});
  CHECK(split({on("-", SplitBehavior::kContiguous)}, text) == Strings{"-", "a", "--", "b", "-"});
  CHECK(split({on("-", SplitBehavior::kMergedWithPrevious)}, text) ==
        Strings{"-", "a-", "-", "b-"});
  CHECK(split({on("-", SplitBehavior::kMergedWithNext)}, text) == Strings{"-a", "-", "-b", "-"});
  CHECK(split({on("-", SplitBehavior::kRemoved, true)}, text) == Strings{"-", "-", "-", "-"});
}

TEST_CASE("split: an empty match cuts and takes nothing") {
  CHECK(split({on("(?=b)", SplitBehavior::kIsolated)}, "abb\u00e9b") ==
        Strings{"a", "b", "b\u00e9", "b"});
}

TEST_CASE("split: steps work on the pieces of the step before") {
  const SplitStep digits{SplitStep::Kind::kDigits, {}};
  CHECK(split({digits, on(kGpt2Pattern, SplitBehavior::kIsolated)}, "ab 12 c") ==
        Strings{"ab", " ", "1", "2", " c"});
  CHECK(split({{SplitStep::Kind::kDigits, {}, SplitBehavior::kContiguous}}, "a12\u00bdb") ==
        Strings{"a", "12\u00bd", "b"});
}

TEST_CASE("split: a space is put in front where there is none") {
  const SplitStep space{SplitStep::Kind::kPrefixSpace, {}};
  CHECK(split({space}, "a b") == Strings{" a b"});
  CHECK(split({space}, " a") == Strings{" a"});
  CHECK(split({space}, "").empty());
  CHECK(split({on(",", SplitBehavior::kRemoved), space}, "a,b") == Strings{" a", " b"});
}

TEST_CASE("split: too many steps are refused") {
  const std::vector<SplitStep> steps(33, on("a", SplitBehavior::kIsolated));
  CHECK(split(steps, "a")[0].find("33 steps") != std::string::npos);
}

TEST_CASE("added tokens: the leftmost, then the longest is found") {
  const AddedTokenFinder finder({{.id = 1, .content = "<a>"},
                                 {.id = 2, .content = "<a>b"},
                                 {.id = 3, .content = "<a>bcd"},
                                 {.id = 4, .content = "b"},
                                 {.id = 5, .content = ""}});
  CHECK(find(finder, "x<a>bc") == Strings{"x", "[2]<a>b", "c"});
  CHECK(find(finder, "<a>bcd<a>") == Strings{"[3]<a>bcd", "[1]<a>"});
  CHECK(find(finder, "<<a>b") == Strings{"<", "[2]<a>b"});
  CHECK(find(finder, "<a") == Strings{"<a"});
  CHECK(find(finder, "").empty());
}

TEST_CASE("added tokens: plain ranges hide a token that touches them, not its neighbours") {
  const AddedTokenFinder finder({{.id = 1, .content = "<a>"}, {.id = 2, .content = "<a>b"}});
  CHECK(find(finder, "<a>", {{0, 3}}) == Strings{"<a>"});
  CHECK(find(finder, "<a>", {{2, 3}}) == Strings{"<a>"});
  CHECK(find(finder, "<a>", {{0, 1}}) == Strings{"<a>"});
  CHECK(find(finder, "<a>b", {{3, 4}}) == Strings{"[1]<a>", "b"});
  CHECK(find(finder, "<a><a><a>", {{3, 6}}) == Strings{"[1]<a>", "<a>", "[1]<a>"});
}

TEST_CASE("added tokens: white space beside them is taken along, but never out of a plain range") {
  const AddedTokenFinder finder(
      {{.id = 1, .content = "<m>", .strip_left = true, .strip_right = true}});
  CHECK(find(finder, "a \n<m>\u3000\tb") == Strings{"a", "[1] \n<m>\u3000\t", "b"});
  CHECK(find(finder, "<m> <m>") == Strings{"[1]<m> ", "[1]<m>"});
  CHECK(find(finder, "a  <m>  b", {{0, 2}, {7, 9}}) == Strings{"a ", "[1] <m> ", " b"});
}

TEST_CASE("added tokens: single words stand alone") {
  const AddedTokenFinder finder({{.id = 1, .content = "w", .single_word = true}});
  CHECK(find(finder, "w") == Strings{"[1]w"});
  CHECK(find(finder, "-w-") == Strings{"-", "[1]w", "-"});
  for (const char* text : {"aw", "w1", "_w", "\u00e9w", "w\u0301", "w\u200d", "\u24b6w",
                           "\U00031350w", "\U00011f50w"}) {
    CHECK(find(finder, text) == Strings{text});
  }
}

TEST_SUITE_END();
