// The device as the daemon sees it: RAII over the platform table of the plugin ABI.
// Everything that comes from a device keeps it open; a destructor logs what fails and never throws.
//
// Threads: a Stream (its copies, fills, launches) is used by one thread at a time. Everything else
// may be called by any thread. Codes: kUnavailable means that the device is lost for good; from
// then on every call answers kUnavailable at once, without asking the platform again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/status.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas {

class Device;

enum class MemoryKind : uint32_t { kDevice = ATLAS_MEMORY_DEVICE, kPinned = ATLAS_MEMORY_PINNED };
enum class StepMode : uint32_t { kGraph = ATLAS_STEP_GRAPH, kEager = ATLAS_STEP_EAGER };

/// What a device says about itself. Bytes are of the memory that kernels use.
struct DeviceInfo {
  bool unified_memory = false;  // host and device share one memory, and one ledger
  bool supports_graphs = false;
  std::string name;
  std::string architecture;
  uint64_t memory_bytes = 0;
  uint64_t available_bytes = 0;  // when asked
  uint32_t compute_units = 0;
};

/// Memory of a device; freed with the object. Must not be freed while submitted work uses it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceBuffer();

  /// As kernels see it, 256-byte aligned; 0 for an empty buffer.
  AtlasAddress address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  MemoryKind kind() const { return kind_; }
  /// The host's view of pinned memory; empty for device memory, which copies alone may touch.
  std::span<std::byte> host() const;

 private:
  friend class Device;
  DeviceBuffer(std::shared_ptr<Device> device, MemoryKind kind, AtlasAddress address,
               uint64_t bytes);
  void swap(DeviceBuffer& other) noexcept;

  std::shared_ptr<Device> device_;
  AtlasAddress address_ = 0;
  uint64_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
};

/// A queue of work that runs in the order of submission. The destructor waits for what was
/// submitted.
class Stream {
 public:
  /// Pageable memory at `from` has been read when the call returns (which may wait for earlier
  /// work); pinned memory is read in stream order.
  Status copy_to_device(AtlasAddress to, const void* from, uint64_t bytes);
  /// Pageable memory at `to` has been written when the call returns; pinned memory in stream order.
  Status copy_to_host(void* to, AtlasAddress from, uint64_t bytes);
  Status fill(AtlasAddress to, uint8_t value, uint64_t bytes);
  /// Waits until everything submitted has run; the error of what failed.
  Status synchronize();

 private:
  friend class Device;
  friend class Event;
  friend class StepExecutable;
  struct Handle;
  explicit Stream(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}
  std::shared_ptr<Handle> handle_;
};

/// A point in a stream's work.
class Event {
 public:
  /// Marks the work submitted to `stream` so far; an earlier mark is forgotten.
  Status record(const Stream& stream);
  /// Waits until the marked work has run. kDeadlineExceeded after `timeout`; an event that was
  /// never recorded has nothing to wait for. Otherwise the error of the work itself, if it failed.
  Status wait(std::chrono::nanoseconds timeout) const;
  /// Whether the marked work has run; never waits.
  Result<bool> query() const;

 private:
  friend class Device;
  struct Handle;
  explicit Event(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}
  std::shared_ptr<Handle> handle_;
};

/// A loaded kernel pack; copies share it. It is let go with the last of them: keep one as long as
/// there are steps with its kernels.
class Module {
 public:
  /// kNotFound if the pack has no such kernel, or none for the running architecture.
  Result<AtlasKernel> kernel(const std::string& name) const;
  const std::string& path() const;

 private:
  friend class Device;
  struct Handle;
  explicit Module(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}
  std::shared_ptr<Handle> handle_;
};

/// One record with kernel and places resolved. `params` and `name` are copied by create.
struct Launch {
  AtlasKernel kernel = 0;
  std::array<uint32_t, 3> grid{1, 1, 1};
  std::array<uint32_t, 3> block{1, 1, 1};
  uint32_t shared_bytes = 0;
  std::span<const std::byte> params;
  std::string name;
  /// The launches before it that must have ended when it begins, as places in the step's list, and
  /// with them what those follow; empty: the launch before it.
  std::span<const uint32_t> after = {};
};

/// A step that is ready to run. Destroying it waits for no stream: the caller has seen its last
/// launch finish.
class StepExecutable {
 public:
  /// Builds the step; nothing runs. kUnimplemented if the device has no graphs and one was asked
  /// for.
  static Result<StepExecutable> create(const std::shared_ptr<Device>& device,
                                       std::span<const Launch> launches, StepMode mode);
  /// Submits one run. Allocates nothing and returns before the step has run.
  Status launch(const Stream& stream) const;
  StepMode mode() const;

 private:
  struct Handle;
  explicit StepExecutable(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}
  std::shared_ptr<Handle> handle_;
};

/// A device that a platform plugin has opened.
class Device : public std::enable_shared_from_this<Device> {
 public:
  using Options = std::vector<std::pair<std::string, std::string>>;

  /// Opens a device through `api`, whose struct_size and functions are checked first. `platform` is
  /// one of the plugin's platforms; `options` are `platform.options` of the settings. `owner` is
  /// kept until the device is closed: whatever keeps the plugin from being shut down.
  static Result<std::shared_ptr<Device>> open(const AtlasPlatformApi* api,
                                              const std::string& platform, const Options& options,
                                              std::shared_ptr<const void> owner = nullptr);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Result<DeviceInfo> info();
  /// Contents are undefined. kResourceExhausted names the bytes asked for.
  Result<DeviceBuffer> alloc(MemoryKind kind, uint64_t bytes);
  Result<Stream> create_stream();
  Result<Event> create_event();
  Result<Module> load_module(const std::string& path);

  /// Whether a call has answered that the device is lost, and what it said.
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  Status lost_reason() const;
  /// Bytes that live buffers of `kind` hold.
  uint64_t allocated_bytes(MemoryKind kind) const {
    return allocated_[static_cast<uint32_t>(kind)].load(std::memory_order_relaxed);
  }

 private:
  friend class DeviceBuffer;
  friend class Stream;
  friend class Event;
  friend class Module;
  friend class StepExecutable;

  Device(const AtlasPlatformApi* api, AtlasDevice* handle, std::shared_ptr<const void> owner);

  /// Calls `function` of the platform and converts its answer; remembers a lost device.
  template <typename Call>
  Status call(std::string_view what, Call&& function);
  Status note(AtlasCode code, const AtlasError& error, std::string_view what);
  void release(const DeviceBuffer& buffer) noexcept;

  const AtlasPlatformApi* api_;
  AtlasDevice* handle_;
  std::shared_ptr<const void> owner_;
  std::array<std::atomic<uint64_t>, 2> allocated_{};
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards lost_reason_
  Status lost_reason_;
};

}  // namespace atlas
