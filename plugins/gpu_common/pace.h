// How a wait spends its time: the runtimes have no wait with a deadline, so waits ask again and
// again.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

namespace atlas::gpu {

inline constexpr uint64_t kForever = ~uint64_t{0};

inline uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

/// Paces a loop that polls: at first it asks without a pause, as short work is done by then, and
/// later it sleeps for a small share of what it has waited, so that a long wait uses no core.
class Pace {
 public:
  explicit Pace(uint64_t timeout_ns) : timeout_ns_(timeout_ns), start_ns_(now_ns()) {}

  /// Waits a little. False: the time is over.
  bool pause() {
    const uint64_t waited = now_ns() - start_ns_;
    if (waited >= timeout_ns_) return false;
    if (waited < kSpinNs) return true;
    if (waited < kYieldNs) {
      ::sched_yield();
      return true;
    }
    const uint64_t slice =
        std::min({std::max(waited / kShare, kLeastNs), kMostNs, timeout_ns_ - waited});
    const timespec sleep{0, static_cast<long>(slice)};
    ::nanosleep(&sleep, nullptr);
    return true;
  }

 private:
  // A short step or copy takes tens of microseconds; a sleep comes back 50 microseconds late (the
  // default slack of Linux's timers), which is little beside what was waited for by then.
  static constexpr uint64_t kSpinNs = 20'000;
  static constexpr uint64_t kYieldNs = 200'000;
  static constexpr uint64_t kShare = 32;
  static constexpr uint64_t kLeastNs = 5'000;
  static constexpr uint64_t kMostNs = 500'000;

  uint64_t timeout_ns_;
  uint64_t start_ns_;
};

}  // namespace atlas::gpu
