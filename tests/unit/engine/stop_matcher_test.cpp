#include "daemon/engine/stop_matcher.h"

#include <doctest/doctest.h>

#include <algorithm>

using atlas::engine::StopMatcher;

TEST_SUITE_BEGIN("engine");

namespace {
/// Pushes `text` in pieces of `size` bytes; what was shown, and the stop string that matched.
std::pair<std::string, std::string> run(const std::vector<std::string>& stops,
                                        const std::string& text, size_t size) {
  StopMatcher matcher(stops);
  std::string shown;
  for (size_t i = 0; i < text.size(); i += size) shown += matcher.push(text.substr(i, size));
  if (!matcher.matched()) shown += matcher.finish();
  return {shown, matcher.matched().value_or("")};
}
}  // namespace

TEST_CASE("stop: a stop string that spans pieces is found, and nothing of it is shown") {
  for (size_t size = 1; size <= 12; ++size) {
    CAPTURE(size);
    CHECK(run({"DEFGHIJ"}, "ABCDEFGHIJKLM", size) ==
          std::pair<std::string, std::string>("ABC", "DEFGHIJ"));
  }
}

TEST_CASE("stop: text that only begins like a stop string comes out in the end") {
  for (size_t size = 1; size <= 6; ++size) {
    CHECK(run({"DEFX"}, "ABCDEF", size) == std::pair<std::string, std::string>("ABCDEF", ""));
    CHECK(run({"aab"}, "aaaac", size) == std::pair<std::string, std::string>("aaaac", ""));
    CHECK(run({"aab"}, "aaaab", size) == std::pair<std::string, std::string>("aa", "aab"));
  }
}

TEST_CASE("stop: no more is held back than could become a stop string") {
  StopMatcher matcher({"\n\nUser:"});
  CHECK(matcher.push("Hello") == "Hello");
  CHECK(matcher.push(" you\n") == " you");
  CHECK(matcher.push("there") == "\nthere");
}

TEST_CASE("stop: the first in the text wins, the longest at one place") {
  CHECK(run({"cd", "b"}, "abcd", 4).second == "b");
  CHECK(run({"b", "bcd"}, "abcd", 4).second == "bcd");
  CHECK(run({"", "x"}, "abxc", 1) == std::pair<std::string, std::string>("ab", "x"));
}

TEST_CASE("stop: without stop strings text passes at once") {
  StopMatcher matcher({});
  CHECK(matcher.push("abc") == "abc");
  CHECK(matcher.finish().empty());
}

TEST_SUITE_END();
