// Holds back text that could still become a stop string; never more than that.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace atlas::engine {

/// Looks for any of several stop strings in text that arrives in pieces, also across pieces.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  /// Takes the next piece and returns what can be shown: everything up to a stop string, or up to
  /// the longest tail that is the beginning of one.
  std::string push(std::string_view piece);
  /// What was held back, when no more text comes and no stop string was found.
  std::string finish();
  /// The stop string that was found first in the text (the longest of those at one place).
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;  // longest first
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace atlas::engine
