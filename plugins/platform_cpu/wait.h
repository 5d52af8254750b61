// Waiting: a word that threads sleep on, and how long it pays to spin before that.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace atlas::platform_cpu {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Sleeps while `word` holds `expected`, at most `timeout_ns`; may return early.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000u);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000u);
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

/// A door that many may wait at. The one who changes what they wait for calls `wake` afterwards;
/// that costs a load while nobody sleeps. All accesses are sequentially consistent: a sleeper
/// announces itself before it looks again, a waker changes the state before it looks for sleepers,
/// so one of the two sees the other. The change is an exchange, not a store: on x86 they are the
/// same instruction, and user-mode qemu lets a load pass the store before it (stlr, ldar).
class Door {
 public:
  /// Spins for about `spin_ns`, then sleeps, until `ready()` or `timeout_ns` is over. False:
  /// timeout. `ready` must read, with seq_cst or stronger than its writers' last store, what they
  /// changed.
  template <typename Ready>
  bool wait(Ready&& ready, uint64_t spin_ns, uint64_t timeout_ns = kForever) {
    if (ready()) return true;
    if (timeout_ns == 0) return false;
    const uint64_t start = now_ns();
    if (spin(ready, start, std::min(spin_ns, timeout_ns))) return true;
    for (;;) {
      sleepers_.fetch_add(1);
      const uint32_t seen = turn_.load();
      const bool done = ready();
      const uint64_t waited = now_ns() - start;
      // An hour at a time keeps the timespec in range for kForever.
      if (!done && waited < timeout_ns) {
        futex_wait(turn_, seen, std::min(timeout_ns - waited, uint64_t{3'600'000'000'000u}));
      }
      sleepers_.fetch_sub(1);
      if (done || ready()) return true;
      if (waited >= timeout_ns) return false;
    }
  }

  void wake() {
    if (sleepers_.load() == 0) return;
    turn_.fetch_add(1);
    futex_wake_all(turn_);
  }

  static constexpr uint64_t kForever = ~uint64_t{0};

 private:
  static uint64_t now_ns() {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

  template <typename Ready>
  static bool spin(Ready& ready, uint64_t start, uint64_t spin_ns) {
    for (uint32_t round = 0;; ++round) {
      for (int i = 0; i < 32; ++i) {
        if (ready()) return true;
        cpu_relax();
      }
      if (now_ns() - start >= spin_ns) return false;
      // Whoever we wait for may need this very core: after the first few rounds let it have a turn.
      if (round >= 4) ::sched_yield();
    }
  }

  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> turn_{0};
};

}  // namespace atlas::platform_cpu
