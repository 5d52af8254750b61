// The host's side of the control block: writes ring entries, reads results.
// One for each state (pages, slots) on a device; generations that share state share it.
#pragma once

#include <memory>
#include <span>

#include "daemon/device/device.h"
#include "daemon/exec/buffers.h"
#include "daemon/exec/host_feed.h"
#include "daemon/plan/plan.h"
#include "kernels/common/control.h"

namespace atlas::exec {

/// The arrays of one ring entry, to be filled before its step is launched.
struct EntryView {
  kernels::StepEntry* head = nullptr;
  std::span<kernels::SequenceInput> sequences;
  std::span<kernels::PageUpdate> page_updates;
  std::span<kernels::LogitBias> biases;
  std::span<kernels::CountUpdate> count_updates;
  std::span<uint32_t> ids;
  std::span<uint32_t> targets;
};

/// What a finished step reported. Valid until its ring entry is begun again.
struct ResultView {
  const kernels::StepResult* head = nullptr;
  std::span<const kernels::SequenceResult> sequences;
  std::span<const kernels::RowScore> scores;
};

/// Used by the engine's thread only.
class ControlBlock {
 public:
  /// Writes the device's constant part and clears slots and counts, on `stream`.
  static Result<std::shared_ptr<ControlBlock>> create(const plan::Plan& plan,
                                                      const BufferTable& buffers, Stream& stream);

  const kernels::ControlLimits& limits() const { return limits_; }
  /// The slot and the page that no sequence gets: for self-tests.
  uint32_t scratch_slot() const { return limits_.max_slots - 1; }

  /// Brings the steps from now on what they ask the host for.
  void attach(std::unique_ptr<HostFeed> feed) { feed_ = std::move(feed); }

  /// The next step's entry, emptied. The step ring_entries before it must have finished.
  EntryView begin();
  /// Makes the entry that begin() gave final and returns its step's number; launch comes next.
  uint64_t finish();
  /// kInternal if the device did not write this step's result (a bug or a broken graph).
  Result<ResultView> result(uint64_t step) const;

 private:
  ControlBlock() = default;
  unsigned char* entry(uint64_t step) const;

  kernels::ControlLimits limits_{};
  kernels::EntryLayout entry_layout_{};
  kernels::ResultLayout result_layout_{};
  unsigned char* ring_ = nullptr;
  unsigned char* results_ = nullptr;
  uint64_t next_step_ = 1;
  std::unique_ptr<HostFeed> feed_;
};

}  // namespace atlas::exec
