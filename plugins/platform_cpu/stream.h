// Streams and events. A stream is a bounded queue and one thread that takes from it; that thread is
// also the caller of the team. An event is a place in a stream's count of finished commands.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "plugins/platform_cpu/step.h"
#include "plugins/platform_cpu/team.h"
#include "plugins/platform_cpu/wait.h"

namespace atlas::platform_cpu {

/// How far a stream has come; outlives it for the events that point to it.
struct Progress {
  std::atomic<uint64_t> completed{0};
  Door door;

  /// False: `timeout_ns` is over before command number `ticket` was done.
  bool wait(uint64_t ticket, uint64_t timeout_ns);
};

class Stream {
 public:
  explicit Stream(Team& team);
  /// Waits for what was submitted.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Each puts one command into the queue; with kCapacity of them pending it waits for room. None
  // allocates.
  void launch(Step& step);
  void copy(void* to, const void* from, uint64_t bytes);
  void fill(void* to, uint8_t value, uint64_t bytes);

  void synchronize();
  /// Copies at once, in the calling thread, after everything that was submitted has run.
  void copy_now(void* to, const void* from, uint64_t bytes);

  uint64_t submitted() const { return submitted_.load(std::memory_order_relaxed); }
  const std::shared_ptr<Progress>& progress() const { return progress_; }

 private:
  static constexpr uint32_t kCapacity = 256;
  struct Command {
    Step* step;        // or null, and then
    const void* from;  // a copy, or null: a fill
    void* to;
    uint64_t bytes;
    uint8_t value;
  };

  static void executor(void* self, uint32_t index);
  void execute();
  void submit(const Command& command);
  void run(const Command& command);

  Team& team_;
  std::shared_ptr<Progress> progress_;
  std::array<Command, kCapacity> queue_;
  alignas(64) std::atomic<uint64_t> submitted_{0};
  std::atomic<bool> stop_{false};
  Door door_;  // the executor: commands, or the end
  std::thread thread_;
};

class Event {
 public:
  void record(const Stream& stream);
  bool wait(uint64_t timeout_ns);

 private:
  std::mutex mutex_;  // guards both: one thread may record while another waits
  std::shared_ptr<Progress> progress_;
  uint64_t ticket_ = 0;
};

}  // namespace atlas::platform_cpu
