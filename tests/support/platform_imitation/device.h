// The imitation's host side: what the table of functions calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/sdk/allocations.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/launches.h"
#include "tests/support/platform_imitation/memory.h"
#include "tests/support/platform_imitation/options.h"
#include "tests/support/platform_imitation/process.h"
#include "tests/support/platform_imitation/protocol.h"

namespace atlas::imitation {

/// All functions throw sdk::Failure; once the device is lost, ATLAS_UNAVAILABLE with the reason.
class Device {
 public:
  static constexpr uint64_t kForever = ~uint64_t{0};

  explicit Device(const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void info(AtlasDeviceInfo* info);
  AtlasAddress alloc(AtlasMemoryKind kind, uint64_t bytes);
  /// The same for the imitation's own use: not counted, never refused on request.
  AtlasAddress take_memory(AtlasMemoryKind kind, uint64_t bytes);
  void free(AtlasMemoryKind kind, AtlasAddress address);
  void check_range(const char* what, AtlasAddress address, uint64_t bytes);
  bool is_pinned(const void* address, uint64_t bytes);

  uint64_t load_module(const std::string& path);
  AtlasKernel find_kernel(uint64_t module, const std::string& name);
  void release_module(uint64_t module) noexcept;
  uint64_t create_step(const AtlasLaunch* launches, uint32_t count, AtlasStepMode mode);
  void destroy_step(uint64_t step) noexcept;

  uint32_t open_stream();
  void close_stream(uint32_t index) noexcept;
  SharedStream& stream(uint32_t index) { return shared_->streams[index]; }
  /// Puts a command into a stream's queue, once it has room.
  void submit(SharedStream& stream, Command command);
  /// The next launch's number, which decides whether it goes wrong.
  Command next_launch(uint64_t step);
  /// Waits until `ticket` commands of the stream are done; false after `timeout_ns`. kForever ends
  /// with a lost device when nothing has moved for `patience_ms`.
  bool wait(SharedStream& stream, uint64_t ticket, uint64_t timeout_ns);

  void check_not_lost();

 private:
  void start(uint32_t attempt);
  void poison(AtlasMemoryKind kind, uint64_t offset, uint64_t bytes);
  uint64_t ask(RequestKind kind, std::span<const char> payload);
  bool lose(const std::string& reason);  // false: it was lost before
  void fail_stream(SharedStream& stream);
  bool finished(SharedStream& stream, uint64_t ticket);
  Arena& arena(AtlasMemoryKind kind) { return arenas_[kind]; }
  uint64_t base(AtlasMemoryKind kind) const;

  const Options options_;
  File device_file_;
  File pinned_file_;
  File shared_file_;
  Shared* shared_ = nullptr;
  std::unique_ptr<AddressSpace> space_;

  std::mutex mutex_;  // guards the memory, kernels and streams that follow
  std::array<Arena, 2> arenas_;
  sdk::Allocations allocations_;
  uint64_t allocation_count_ = 0;
  uint64_t graph_count_ = 0;
  std::map<uint64_t, std::unordered_set<AtlasKernel>> kernels_;  // by module
  std::array<bool, kMaxStreams> stream_used_{};

  std::atomic<uint64_t> launch_count_{0};
  std::mutex lost_mutex_;  // guards lost_reason_
  std::string lost_reason_;
  std::atomic<bool> lost_{false};
  std::unique_ptr<Process> process_;  // last: its thread calls lose
};

}  // namespace atlas::imitation
