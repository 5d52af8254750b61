// What the imitation's two processes share: queues in a memory file, and requests over a socket.
//
// Three memory files: device memory (mapped by the device process alone; the host holds its address
// range with PROT_NONE), pinned memory (mapped by both at one address) and the queues (`Shared`,
// anywhere). All are zero at first, which is the queues' valid beginning.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace atlas::imitation {

inline constexpr uint32_t kMaxStreams = 32;
inline constexpr uint32_t kQueueCapacity = 256;

/// The files that the device process finds open when it starts.
enum Descriptor : int {
  kSocketFd = 3,
  kDeviceFd = 4,
  kPinnedFd = 5,
  kSharedFd = 6,
  kFirstFreeFd = 7
};

inline uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // the same clock in both processes
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

/// Where threads of either process wait. The order of accesses (all sequentially consistent) is
/// what lets a waker see a sleeper, or a sleeper see the change.
struct SharedDoor {
  std::atomic<uint32_t> turn;
  std::atomic<uint32_t> sleepers;

  /// Sleeps once, at most `timeout_ns`, unless `ready()`; the caller looks again itself.
  template <typename Ready>
  void sleep(Ready&& ready, uint64_t timeout_ns) {
    sleepers.fetch_add(1);
    const uint32_t seen = turn.load();
    if (!ready()) {
      timespec timeout{};
      timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000u);
      timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000u);
      ::syscall(SYS_futex, &turn, FUTEX_WAIT, seen, &timeout, nullptr, 0);
    }
    sleepers.fetch_sub(1);
  }

  void wake() {
    // Not a load: user-mode qemu lets it pass the store before it.
    if (sleepers.fetch_add(0) == 0) return;
    turn.fetch_add(1);
    ::syscall(SYS_futex, &turn, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
};

/// What goes wrong with a launch, on request.
enum class Fault : uint32_t { kNone, kFail, kHang, kLose };

enum class CommandKind : uint32_t { kStep, kCopy, kFill };

struct Command {
  CommandKind kind;
  Fault fault;
  uint64_t step;  // id of a step; a launch's number is `bytes`
  uint64_t to;
  uint64_t from;
  uint64_t bytes;
  uint64_t value;
  uint64_t submitted_ns;
};

struct SharedStream {
  alignas(64) std::atomic<uint64_t> submitted;  // written by the host
  std::atomic<uint32_t> stop;                   // by the host: end when nothing is left
  SharedDoor submit_door;
  alignas(64) std::atomic<uint64_t> completed;  // written by the device
  std::atomic<uint64_t> heartbeat;              // grows while commands run
  std::atomic<uint32_t> failed;                 // 1: `failure` says why nothing runs any more
  SharedDoor done_door;
  char failure[240];
  Command queue[kQueueCapacity];
};

struct Shared {
  SharedStream streams[kMaxStreams];
};

// ---- Requests
// -------------------------------------------------------------------------------------

enum class RequestKind : uint32_t {
  kHello,          // payload: Hello
  kLoadModule,     // payload: path; value: module id
  kFindKernel,     // payload: module id (uint64), name; value: kernel handle
  kReleaseModule,  // payload: module id (uint64)
  kCreateStep,     // payload: StepHead, StepRecord[], parameter bytes; value: step id
  kDestroyStep,    // payload: step id (uint64)
  kStartStream,    // payload: stream index (uint64)
  kStopStream,     // payload: stream index (uint64); after its queue ran dry
};

struct RequestHead {
  RequestKind kind;
  uint32_t bytes;  // of the payload
};

/// Followed by `bytes` of message if `code` is not ATLAS_OK.
struct Answer {
  int32_t code;
  uint32_t bytes;
  uint64_t value;
};

struct Hello {
  uint64_t device_address, device_bytes;
  uint64_t pinned_address, pinned_bytes;
  uint64_t delay_ns;
  int64_t host_pid;
};

struct StepHead {
  uint32_t count;
  uint32_t corrupt;  // 1: leave out the last record but one
  uint64_t params_bytes;
};

struct StepRecord {
  uint64_t kernel;
  uint64_t params_offset;
  uint32_t tasks;
  uint32_t shared_bytes;
};

}  // namespace atlas::imitation
