// How far the work is, on standard error: one line that is written over on a terminal, and a line
// now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace atlas::quantize {

/// For one thread. Cost is any unit in which the time grows evenly.
class Progress {
 public:
  Progress(bool quiet, uint64_t total_cost);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `cost` was done in an earlier run and tells nothing about this one's speed.
  void skip(uint64_t cost) { skipped_ += cost; }
  /// `cost` more is done; `what` is what is next.
  void advance(uint64_t cost, const std::string& what);
  /// A line that stays.
  void say(const std::string& line);

  /// "1 h 02 min", "3 min 20 s", "12 s".
  static std::string duration(double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  const bool quiet_, terminal_;
  const uint64_t total_;
  uint64_t skipped_ = 0, done_ = 0;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
  bool line_open_ = false;
};

}  // namespace atlas::quantize
