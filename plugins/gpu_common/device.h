// A GPU that is open: its memory, its kernels, and whether it is lost.
//
// A device is lost when a call answers with an error after which no other can succeed (a kernel's
// fault, an uncorrectable memory error), or when a wait outlasts the option patience_ms. From then
// on no call reaches the runtime, for some of its calls would wait for ever: what the device holds
// stays with it until the process ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/gpu_common/options.h"
#include "plugins/gpu_common/pace.h"
#include "plugins/gpu_common/runtime.h"
#include "plugins/sdk/allocations.h"
#include "plugins/sdk/guard.h"

namespace atlas::gpu {

class Device;

/// What a step is called in errors; shared, as an error may come after the step is gone.
using StepText = std::shared_ptr<const std::string>;

/// A kernel that a module gave out; its address is its handle.
struct LoadedKernel {
  Kernel kernel;
  std::string name;
  uint32_t allowed_shared_bytes;  // dynamic; guarded by the device's mutex
};

class Module {
 public:
  /// `image`: of the pack at `path`, by read_image(). Throws sdk::Failure:
  /// ATLAS_FAILED_PRECONDITION for a pack of another kind of device.
  Module(Device& device, const std::string& path, std::vector<char> image);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Throws sdk::Failure: ATLAS_NOT_FOUND for a name that it does not have.
  AtlasKernel kernel(const std::string& name);
  /// See Device::release_module.
  void release();
  bool holds(const std::string& path, const std::vector<char>& image) const {
    return path == path_ && image == image_;
  }

 private:
  friend class Device;
  Device& device_;
  std::string path_;
  std::vector<char> image_;
  void* handle_ = nullptr;
  uint32_t users_ =
      0;  // loads that were not released; guarded by the device's mutex, as what follows
  std::map<std::string, std::unique_ptr<LoadedKernel>> kernels_;
};

class Device {
 public:
  Device(std::unique_ptr<Runtime> runtime, const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void info(AtlasDeviceInfo* info);
  AtlasAddress alloc(AtlasMemoryKind kind, uint64_t bytes);
  void free(AtlasMemoryKind kind, AtlasAddress address);
  /// A pack that is there and has not changed is not loaded again: every swap asks for all packs.
  /// Throws sdk::Failure: ATLAS_NOT_FOUND without the file, ATLAS_FAILED_PRECONDITION for one that
  /// is no pack, or none for this device.
  Module* load_module(const std::string& path);
  /// Takes a load back. The last one unloads the module, once the streams have done what was
  /// submitted so far. Throws sdk::Failure if the device is or gets lost.
  void release_module(Module* module);

  // For what lives on the device:

  Runtime& runtime() { return *runtime_; }
  const Options& options() const { return options_; }
  std::mutex& mutex() { return mutex_; }

  /// Begins a call: throws if the device is lost, and binds the calling thread.
  void enter();
  void check_not_lost();
  bool is_lost() const { return lost_.load(std::memory_order_acquire); }

  /// Throws unless `answer` is a success; `context()`, a text, says what was being done.
  template <typename Context>
  void check(const Answer& answer, const Context& context) {
    if (answer.result != 0) fail(answer, context());
  }
  void check(const Answer& answer) {
    if (answer.result != 0) fail(answer, {});
  }
  [[noreturn]] void fail(const Answer& answer, const std::string& context);

  /// Asks `query()`, an Answer, until it is no longer kNotReady. False: not within `timeout_ns`.
  /// kForever is bounded by patience, after which the device is lost. `context()` as in check.
  template <typename Query, typename Context>
  bool wait(const Query& query, uint64_t timeout_ns, const Context& context) {
    Pace pace(timeout_ns == kForever ? options_.patience_ms * 1'000'000 : timeout_ns);
    for (;;) {
      check_not_lost();
      const Answer answer = query();
      if (answer.result == 0) return true;
      if (runtime_->outcome(answer.result) != Outcome::kNotReady) fail(answer, context());
      if (pace.pause()) continue;
      if (timeout_ns == kForever) lose_patience(context());
      return false;
    }
  }

  void check_range(const char* what, AtlasAddress address, uint64_t bytes);
  bool is_pinned(const void* address, uint64_t bytes);
  /// The kernel behind a handle; null: no module gave it out.
  LoadedKernel* find_kernel(AtlasKernel kernel);
  void add_kernel(const LoadedKernel* kernel);  // under mutex()

  /// Remembers the step that was submitted last: what a fault that is found later is put down to.
  void note_step(const StepText& text);
  void add_stream(void* stream);
  void remove_stream(void* stream);

 private:
  void lose(const std::string& reason);
  [[noreturn]] void lose_patience(const std::string& context);
  std::string last_step();
  void wait_for_streams();
  Budget budget();
  Answer take(AtlasMemoryKind kind, uint64_t bytes, uint64_t* address);
  Answer give_back(AtlasMemoryKind kind, uint64_t address);

  std::unique_ptr<Runtime> runtime_;
  Options options_;
  uint64_t reserve_;
  std::mutex mutex_;  // guards what follows, up to the lost state
  sdk::Allocations allocations_;
  std::vector<std::unique_ptr<Module>> modules_;
  std::set<AtlasKernel> kernels_;
  std::set<void*> streams_;
  std::atomic<bool> lost_{false};
  std::mutex lost_mutex_;
  std::string lost_reason_;  // guarded by lost_mutex_
  std::mutex step_mutex_;
  StepText step_;  // submitted last; guarded by step_mutex_
};

}  // namespace atlas::gpu
