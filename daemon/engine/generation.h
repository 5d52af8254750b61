// Generation: one set of plugins, packs, plan and layouts that serves a model, ready to run.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/device.h"
#include "daemon/engine/cache_pool.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/prefix_cache.h"
#include "daemon/exec/buffers.h"
#include "daemon/exec/control_block.h"
#include "daemon/exec/steps.h"
#include "daemon/plan/planner.h"

namespace atlas::engine {

/// Pages, slots and the control block: what sequences live in. Generations whose state layouts are
/// equal share one.
struct State {
  std::shared_ptr<const exec::BufferSet> buffers;
  std::shared_ptr<exec::ControlBlock> control;
  std::shared_ptr<CachePool> pool;
};

/// A model and the plugins that it is to run on, with its steps planned and audited: everything
/// that is known before a byte is allocated.
struct PlannedModel {
  ModelInfo info;
  std::shared_ptr<const plan::WeightSource> weights;
  std::vector<plan::QuantBackend> quant;
  std::vector<plan::AttentionBackend> attention;
  std::vector<plan::DeclaredFormats> declared;
  std::vector<std::shared_ptr<const void>> keep_alive;  // plugins, checkpoint
  plan::StepProgram program;
  plan::Shape shape;
  plan::Plan plan;
  exec::GraphPolicy graphs = exec::GraphPolicy::kOn;
  uint32_t load_threads = 1;
  /// Opens the table of a model whose plan has a feed.
  std::function<Result<std::unique_ptr<exec::RowSource>>()> open_table;
};

/// Plans `model.program`; fills `model.plan`.
Status plan_model(PlannedModel& model, const std::string& platform);

/// What a swap touches, from the least to the most.
enum class SwapClass {
  kSteps,    // same weight and state layouts: new sequences take the new steps
  kState,    // same weights, another state layout
  kWeights,  // other weights
};
std::string_view swap_class_name(SwapClass swap);
SwapClass swap_class(const plan::Plan& from, const plan::Plan& to);

/// Phase ("reading weights") and how far it is, 0..1.
using BuildProgress = std::function<void(const std::string& phase, double progress)>;

class Generation {
 public:
  /// Allocates what `share` (may be null) does not already hold, loads weights, records the steps
  /// with the kernels of `modules`, which it keeps.
  /// Errors leave nothing behind. `stop` ends it early.
  static Result<std::shared_ptr<Generation>> build(std::shared_ptr<PlannedModel> model,
                                                   const std::shared_ptr<Device>& device,
                                                   const std::vector<Module>& modules,
                                                   const Generation* share,
                                                   const BuildProgress& progress,
                                                   const std::function<bool()>& stop);

  uint64_t id() const { return info_->generation; }
  const plan::Plan& plan() const { return model_->plan; }
  const PlannedModel& model() const { return *model_; }
  /// To build the same generation again.
  const std::shared_ptr<PlannedModel>& shared_model() const { return model_; }
  const std::shared_ptr<const ModelInfo>& info() const { return info_; }
  exec::Steps& steps() { return *steps_; }
  CachePool& pool() { return *state_.pool; }
  PrefixCache& prefixes() { return *prefixes_; }
  exec::ControlBlock& control() { return *state_.control; }
  uint32_t scratch_page() const { return model_->plan.page_count - 1; }
  /// Bytes that this generation alone needs beside `share`, for the ledger of a swap.
  static uint64_t bytes_beside(const plan::Plan& plan, const plan::Plan* share);
  /// Bytes of this generation's ledger that it does not share with `other`.
  uint64_t bytes_not_in(const Generation& other) const;

 private:
  Generation() = default;
  std::shared_ptr<PlannedModel> model_;
  std::shared_ptr<const ModelInfo> info_;
  std::shared_ptr<const exec::BufferSet> weights_, workspace_;
  State state_;
  std::unique_ptr<PrefixCache> prefixes_;
  std::vector<Module> modules_;  // whose kernels the steps launch
  std::unique_ptr<exec::Steps> steps_;
};

}  // namespace atlas::engine
