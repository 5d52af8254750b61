// Steps of a generation: records with kernels and places resolved, as a graph or walked eagerly.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "daemon/device/device.h"
#include "daemon/exec/buffers.h"
#include "daemon/exec/control_block.h"
#include "daemon/plan/plan.h"

namespace atlas::exec {

/// Kernels of the loaded packs by name; looked up while steps are built, never later.
using KernelTable = std::map<std::string, AtlasKernel>;

/// Resolves every kernel that the plan names in the first module that has it. One error names all
/// that are missing.
Result<KernelTable> resolve_kernels(const plan::Plan& plan, const std::vector<Module>& modules);

enum class GraphPolicy { kOn, kOff };

/// What a self-test looks at: bytes on the device.
struct ScratchPlace {
  AtlasAddress address = 0;
  uint64_t bytes = 0;
};

class Steps {
 public:
  static Result<std::unique_ptr<Steps>> build(const std::shared_ptr<Device>& device,
                                              const plan::Plan& plan, const KernelTable& kernels,
                                              BufferTable buffers,
                                              std::shared_ptr<ControlBlock> control,
                                              GraphPolicy policy);

  /// The smallest bucket of `kind` with at least so many rows and logit rows; null if none.
  const plan::Bucket* bucket(plan::StepKind kind, uint32_t rows, uint32_t logit_rows) const;

  /// Submits the entry that the control block has just finished. The bucket's graph is used only
  /// once verify() has found it equal to the eager walk.
  Status launch(const plan::Bucket& bucket, Stream& stream);

  /// Runs the bucket's graph and its eager walk on the scratch slot and compares logits, results
  /// and page, bit for bit. A graph that differs or was refused is not used again, and
  /// `graph_report` says so. Waits for the stream; done once a bucket, but again where rows of the
  /// n-gram table did not come. `scratch_page` is a page no sequence has.
  Status verify(const plan::Bucket& bucket, Stream& stream, uint32_t scratch_page);
  bool verified(const plan::Bucket& bucket) const;

  /// "on", "off (settings)", or what happened to which graphs.
  std::string graph_report() const;
  /// Whether verify() has found a graph that gave other bits than its eager walk.
  bool found_different_graph() const { return found_different_graph_; }

  ControlBlock& control() { return *control_; }
  const BufferTable& buffers() const { return buffers_; }

 private:
  struct Entry {
    StepExecutable eager;
    std::unique_ptr<StepExecutable> graph;  // null: off, refused or found different
    bool verified = false;
    std::string refusal;
  };
  Steps(const plan::Plan& plan, BufferTable buffers, std::shared_ptr<ControlBlock> control)
      : plan_(plan), buffers_(std::move(buffers)), control_(std::move(control)) {}
  struct Snapshot;
  ScratchPlace place_of(plan::BufferId buffer, uint64_t index, uint64_t bytes) const;
  Result<Snapshot> run_scratch(const plan::Bucket& bucket, const StepExecutable& step,
                               Stream& stream, uint32_t scratch_page);

  const plan::Plan& plan_;
  BufferTable buffers_;
  std::shared_ptr<ControlBlock> control_;
  std::map<plan::Bucket, Entry> entries_;
  GraphPolicy policy_ = GraphPolicy::kOn;
  bool found_different_graph_ = false;
};

}  // namespace atlas::exec
