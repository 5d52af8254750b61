// A control block in the memory of a GPU machine: the twin of one in plain memory.
#pragma once

#include <string>
#include <vector>

#include "tests/support/control_block.h"
#include "tests/support/gpu_twin.h"

namespace atlas::test {

/// Arrays of a ControlBlock on the other side. The host's is the model: tests run a kernel of the
/// CPU pack on it and the GPU's on this one, and ask whether all arrays are the same.
class GpuControl {
 public:
  GpuControl(GpuMachine& machine, ControlBlock& block)
      : machine_(machine), host_(block.control()), entry_bytes_(block.entry_layout().bytes) {
    const kernels::ControlLimits& limits = host_.limits;
    gpu_ = host_;
    mirror("ring", gpu_.ring, limits.ring_entries * entry_bytes_);
    mirror("results", gpu_.results, limits.ring_entries * host_.result_layout.bytes);
    mirror("entry", gpu_.entry, entry_bytes_);
    mirror("slots", gpu_.slots, limits.max_slots);
    mirror("block_table", gpu_.block_table, size_t{limits.max_slots} * limits.max_pages);
    mirror("counts", gpu_.counts, size_t{limits.max_slots} * limits.vocab);
    mirror("logit_rows", gpu_.logit_rows, limits.max_logit_rows);
    mirror("sampled", gpu_.sampled, limits.max_logit_rows);
    mirror("next_ids", gpu_.next_ids, limits.max_rows);
    mirror("draft_sources", gpu_.draft_sources, limits.max_sequences);
    mirror("scores", gpu_.scores, limits.max_logit_rows);
    mirror("rows", gpu_.step.rows, limits.max_rows);
    mirror("spans", gpu_.step.spans, limits.max_sequences);
    mirror("draft rows", gpu_.draft.rows, limits.max_sequences);
    mirror("draft spans", gpu_.draft.spans, limits.max_sequences);
    control_ = machine_.in_out("control", std::vector<kernels::StepControl>{gpu_});
  }
  GpuControl(const GpuControl&) = delete;
  GpuControl& operator=(const GpuControl&) = delete;

  kernels::StepControl* control() { return control_; }
  kernels::RowSet* step() { return &control_->step; }

  /// Brings everything to where the host's block stands.
  void push() {
    for (const Array& array : arrays_) {
      const auto* from = static_cast<const uint8_t*>(array.host);
      machine_.write(static_cast<const uint8_t*>(array.gpu),
                     std::vector<uint8_t>(from, from + array.bytes));
    }
    machine_.write(control_, std::vector<kernels::StepControl>{as_gpu()});
  }
  /// Names of the arrays that differ, empty if none does. With a host block that ran on a CPU.
  /// After a wrong entry its copy and the slots' stamps may differ: nothing reads them.
  std::string differences(bool wrong_entry = false) {
    std::string names;
    for (const Array& array : arrays_) {
      if (wrong_entry && array.name == "entry") continue;
      auto bytes = machine_.contents(static_cast<const uint8_t*>(array.gpu));
      if (wrong_entry && array.name == "slots") take_stamps(bytes);
      if (std::memcmp(bytes.data(), array.host, array.bytes) != 0) names += array.name + " ";
    }
    const kernels::StepControl expected = as_gpu();
    const auto held = machine_.contents(control_);
    if (std::memcmp(&held[0], &expected, sizeof(expected)) != 0) names += "control";
    return names;
  }

 private:
  struct Array {
    std::string name;
    const void* host;
    void* gpu;
    size_t bytes;
  };
  template <typename T>
  void mirror(const std::string& name, T*& at, size_t count) {
    using Plain = std::remove_const_t<T>;
    Plain* gpu = machine_.in_out(name, std::vector<Plain>(at, at + count));
    arrays_.push_back({name, at, gpu, count * sizeof(T)});
    at = gpu;
  }
  void take_stamps(std::vector<uint8_t>& slots) const {
    for (uint32_t i = 0; i < host_.limits.max_slots; ++i) {
      std::memcpy(
          slots.data() + i * sizeof(kernels::SlotState) + offsetof(kernels::SlotState, step),
          &host_.slots[i].step, sizeof(uint64_t));
    }
  }
  /// The host's scalars with the GPU's pointers.
  kernels::StepControl as_gpu() const {
    kernels::StepControl control = gpu_;
    control.next_step = host_.next_step;
    control.sequence_count = host_.sequence_count;
    control.logit_count = host_.logit_count;
    control.error = host_.error;
    control.step.row_count = host_.step.row_count;
    control.step.span_count = host_.step.span_count;
    control.draft.row_count = host_.draft.row_count;
    control.draft.span_count = host_.draft.span_count;
    return control;
  }

  GpuMachine& machine_;
  kernels::StepControl& host_;
  size_t entry_bytes_;
  kernels::StepControl gpu_{};
  std::vector<Array> arrays_;
  kernels::StepControl* control_ = nullptr;
};

}  // namespace atlas::test
