#include "daemon/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace atlas::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  std::stable_sort(stops_.begin(), stops_.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

std::string StopMatcher::push(std::string_view piece) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(piece);
  held_ += piece;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < first) {
      first = at;
      matched_ = stop;
    }
  }
  if (matched_) {
    std::string shown = held_.substr(0, first);
    held_.clear();
    return shown;
  }
  // The longest tail that begins a stop string stays. stops_.front() is the longest.
  size_t keep = std::min(held_.size(), stops_.front().size() - 1);
  const auto begins_a_stop = [this](size_t length) {
    const std::string_view tail = std::string_view(held_).substr(held_.size() - length);
    return std::any_of(stops_.begin(), stops_.end(), [&](const std::string& stop) {
      return stop.size() > length && std::string_view(stop).starts_with(tail);
    });
  };
  while (keep > 0 && !begins_a_stop(keep)) --keep;
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace atlas::engine
