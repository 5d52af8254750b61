// The threads that run steps together, and how they share out a record's tasks.
//
// A record is done when all its tasks are done, not when all threads have passed: a thread that the
// system has put aside holds up nobody unless it holds tasks. `claim_` packs the running record's
// sequence number with the tasks nobody has taken yet; a thread takes a share of them with one
// compare-and-swap. Whoever finishes a record's last task holds the baton: it runs the single-task
// records that follow by itself and then publishes the next record for all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "plugins/platform_cpu/wait.h"

namespace atlas::platform_cpu {

/// One launch, ready to run: `tasks` is at least 1.
struct Record {
  kernels::cpu::Kernel function;
  const void* params;
  uint32_t tasks;
};

/// One block for each thread of a team.
struct Scratch {
  std::byte* base;
  size_t stride;  // bytes from one thread's block to the next
};

/// Gives the calling thread a name, the floating-point environment that all threads of this plugin
/// share (round to nearest, subnormal numbers kept, as IEEE 754 has it) and, if `core` is not
/// negative, one core to stay on.
void prepare_thread(const char* name, int core);

/// Starts a thread that takes no signals: those are the daemon's own threads' business.
std::thread start_thread(void (*body)(void*, uint32_t), void* self, uint32_t index);

class Team {
 public:
  /// `threads` includes the caller of run, so threads - 1 are started. `cores` is empty, or one
  /// core for each thread to stay on (taken in turn). Throws std::system_error.
  Team(uint32_t threads, std::vector<int> cores);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  uint32_t threads() const { return threads_; }
  /// The core that callers of run stay on, or -1.
  int caller_core() const { return cores_.empty() ? -1 : cores_[0]; }

  /// Runs `count` records in order, each over all its tasks; returns when the last one is done.
  /// Callers take turns. Allocates nothing.
  void run(const Record* records, uint32_t count, const Scratch& scratch);

 private:
  static constexpr uint32_t kSharesAhead =
      2;  // a share is 1 / (kSharesAhead * threads) of the rest
  static constexpr uint32_t kFinestShares =
      12;  // but no less than 1 / (kFinestShares * threads) of all

  static void worker(void* self, uint32_t index);
  void work(uint32_t thread);
  void run_alone(const Record* records, uint32_t count, const Scratch& scratch);
  void proceed(uint32_t thread, uint32_t index);
  void publish(uint32_t index, uint32_t taken);
  bool drain(uint32_t thread, uint32_t held);
  bool help(uint32_t thread);
  uint32_t share_of(uint32_t left, uint32_t finest) const;
  std::byte* scratch(uint32_t thread) const { return scratch_.base + thread * scratch_.stride; }

  const uint32_t threads_;
  const uint32_t divisor_;
  const std::vector<int> cores_;
  std::mutex turn_;  // held while a list runs

  // Written by who holds the baton, before the claim that lets others read them.
  const Record* records_ = nullptr;
  uint32_t count_ = 0;
  uint32_t index_ = 0;
  uint32_t sequence_ = 0;
  Scratch scratch_{};
  Record current_{};

  alignas(64) std::atomic<uint64_t> claim_{0};  // sequence << 32 | tasks left to take
  std::atomic<uint32_t> finest_{1};             // smallest share; a stale one does no harm
  alignas(64) std::atomic<uint32_t> done_{0};   // tasks of the current record that have run
  alignas(64) std::atomic<bool> finished_{false};
  std::atomic<bool> stop_{false};
  Door work_door_;    // workers: tasks to take, or the end
  Door caller_door_;  // the caller of run: tasks to take, or the list is finished
  std::vector<std::thread> workers_;
};

}  // namespace atlas::platform_cpu
