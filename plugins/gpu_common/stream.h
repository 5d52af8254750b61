// Streams and events. Pageable memory goes through a staging area of pinned memory of the stream's
// own: what the runtimes do with it is neither ordered nor bounded as the contract has it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "plugins/gpu_common/device.h"
#include "plugins/gpu_common/step.h"

namespace atlas::gpu {

/// A runtime's event, made for a device.
class Mark {
 public:
  explicit Mark(Device& device);
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  void* handle() const { return handle_; }

 private:
  Device& device_;
  void* handle_ = nullptr;
};

/// A runtime's stream, made for a device.
class Queue {
 public:
  explicit Queue(Device& device);
  /// Waits for what was submitted, unless the device is lost.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  void* handle() const { return handle_; }
  /// Waits until all that was submitted has run. Throws sdk::Failure.
  void drain();

 private:
  Device& device_;
  void* handle_ = nullptr;
};

class Stream {
 public:
  explicit Stream(Device& device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void launch(Step& step);
  void copy_to_device(AtlasAddress to, const void* from, uint64_t bytes);
  void copy_to_host(void* to, AtlasAddress from, uint64_t bytes);
  void fill(AtlasAddress to, uint8_t value, uint64_t bytes);
  void synchronize();

  void* handle() const { return queue_.handle(); }

 private:
  static constexpr uint64_t kStageBytes = uint64_t{2} << 20;
  static constexpr uint32_t kStages = 4;

  char* stage(uint64_t part) const;
  void mark_stage(uint64_t part);
  void wait_for_stage(uint64_t part);

  Device& device_;
  AtlasAddress staging_;  // pinned: kStages parts
  Queue queue_;
  std::array<Mark, kStages> marks_;  // when a part was read or written last
  uint64_t next_part_ = 0;
};

class Event {
 public:
  explicit Event(Device& device) : device_(device), mark_(device) {}
  void record(const Stream& stream);
  /// False: the work is not done within `timeout_ns`. Throws sdk::Failure.
  bool wait(uint64_t timeout_ns);
  Device& device() { return device_; }

 private:
  Device& device_;
  Mark mark_;
  std::atomic<bool> recorded_{false};
};

}  // namespace atlas::gpu
