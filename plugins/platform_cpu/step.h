// A step: its records in one block, ready for the team to walk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/platform_cpu/team.h"
#include "plugins/sdk/launches.h"

namespace atlas::platform_cpu {

/// Cache-line aligned bytes that are never initialised.
class AlignedBlock {
 public:
  static constexpr std::align_val_t kAlignment{64};
  explicit AlignedBlock(size_t bytes)
      : data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))), bytes_(bytes) {}
  ~AlignedBlock() { ::operator delete(data_, kAlignment); }
  AlignedBlock(const AlignedBlock&) = delete;
  AlignedBlock& operator=(const AlignedBlock&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

/// Scratch for every thread of a team; shared by the steps whose needs it covers.
class ScratchBlock {
 public:
  ScratchBlock(uint32_t threads, uint32_t bytes);
  uint32_t bytes() const { return bytes_; }
  Scratch view() const { return {block_.data(), stride_}; }

 private:
  uint32_t bytes_;
  size_t stride_;
  AlignedBlock block_;
};

class Step {
 public:
  /// Gives scratch of so many bytes a thread.
  using ScratchSource = std::function<std::shared_ptr<const ScratchBlock>(uint32_t)>;

  /// Copies the launches.
  Step(const sdk::LaunchList& launches, AtlasStepMode mode, const ScratchSource& scratch_for);

  /// Graph: one hand-over for the whole list. Eager: one for each record. Allocates nothing.
  void run(Team& team) const;

  /// Launches that are submitted and not yet done; step_destroy waits for 0.
  std::atomic<uint32_t> pending{0};

 private:
  std::vector<Record> records_;
  std::unique_ptr<AlignedBlock> params_;
  std::shared_ptr<const ScratchBlock> scratch_;
  AtlasStepMode mode_;
};

}  // namespace atlas::platform_cpu
