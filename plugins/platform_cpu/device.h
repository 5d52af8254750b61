// The host's processor as a device: its memory, its kernel packs, its team of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/platform_cpu/options.h"
#include "plugins/platform_cpu/step.h"
#include "plugins/platform_cpu/team.h"
#include "plugins/sdk/allocations.h"

namespace atlas::platform_cpu {

class Device;

/// A kernel pack: a shared object that stays loaded until it is released or its device is closed.
class Module {
 public:
  /// Throws Failure: ATLAS_NOT_FOUND without such a file, ATLAS_FAILED_PRECONDITION if it cannot be
  /// loaded, with the loader's own words.
  Module(Device& device, const std::string& path);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Throws Failure (ATLAS_NOT_FOUND).
  AtlasKernel kernel(const std::string& name);
  void release();

 private:
  friend class Device;
  Device& device_;
  std::string path_;
  void* handle_ = nullptr;
  std::unordered_set<AtlasKernel> kernels_;  // that it gave out; guarded by the device's mutex
};

/// All functions may be called by any thread. What fails is thrown as sdk::Failure.
class Device {
 public:
  explicit Device(const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void info(AtlasDeviceInfo* info);
  AtlasAddress alloc(AtlasMemoryKind kind, uint64_t bytes);
  void free(AtlasMemoryKind kind, AtlasAddress address);
  /// Refuses a range that is not inside one allocation.
  void check_range(const char* what, AtlasAddress address, uint64_t bytes);
  bool is_pinned(const void* address, uint64_t bytes);

  Module* load_module(const std::string& path);
  void release_module(Module* module);
  void add_kernel(Module& module, AtlasKernel kernel);
  std::unique_ptr<Step> create_step(const AtlasLaunch* launches, uint32_t count,
                                    AtlasStepMode mode);
  Team& team() { return team_; }

 private:
  bool knows_kernel(AtlasKernel kernel);
  std::shared_ptr<const ScratchBlock> scratch_for(uint32_t bytes);

  std::mutex mutex_;  // guards all but the team
  sdk::Allocations allocations_;
  uint64_t allocated_bytes_ = 0;
  std::vector<std::unique_ptr<Module>> modules_;
  std::shared_ptr<const ScratchBlock> scratch_;
  Team team_;
};

}  // namespace atlas::platform_cpu
