// One product, or one layer of experts, planned as the planner lowers it in a model, over and over:
// each call of a step with its own copy of the weights, or its own choice of experts, so that what
// it reads comes from memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/app/assembly.h"
#include "daemon/exec/buffers.h"
#include "daemon/exec/steps.h"
#include "daemon/plan/planner.h"

namespace atlas::bench {

/// y[rows, n] = x[rows, k] W^T with weights of `format` ("exl3:4"); or, with experts, the layer in
/// which each row has `top` of them: k -> 2 n, silu(gate) * up, n -> k, weighted sum.
struct KernelShape {
  std::string format;
  uint64_t k = 0, n = 0;
  uint32_t experts = 0, top = 0;
  /// "2560x10240", "10of512:2560x640".
  std::string name() const;
};

/// Plugins, and a device with its kernels.
struct KernelDevice {
  static Result<std::unique_ptr<KernelDevice>> open(const settings::Settings& settings);

  settings::Settings settings;
  app::Plugins plugins;
  std::shared_ptr<Device> device;
  DeviceInfo info;
  std::vector<Module> modules;
  std::vector<plan::QuantBackend> quant;
  std::vector<plan::AttentionBackend> attention;
};

/// A step that is ready: the records of call i are [i * length, (i + 1) * length) of it.
struct KernelCalls {
  plan::Bucket bucket;
  uint32_t calls = 0;  // with other weights each
  size_t length = 0;
  std::vector<size_t> timed;         // of a call's records
  std::vector<std::string> kernels;  // of those
  double bytes = 0;                  // packed weights that a call reads, on average
  double weights = 0;                // that a call reads, each counted once
  double operations = 0;             // multiplications and additions of a call
};

class KernelPlan {
 public:
  /// Plans, allocates and loads. `rows`: of the steps that there are to be. `resident_bytes`: of
  /// all copies of a product's weights together, at least; two copies are the fewest.
  /// Errors: kInvalidArgument and kUnimplemented if the format has no such matrix, or the platform
  /// no such product; kResourceExhausted.
  static Result<std::unique_ptr<KernelPlan>> build(const KernelDevice& device,
                                                   const KernelShape& shape,
                                                   const std::vector<uint32_t>& rows,
                                                   uint64_t resident_bytes);

  /// Makes the step of `rows` ready, and the one before it not.
  Result<KernelCalls> prepare(uint32_t rows);
  /// `count` calls one after the other, round and round through those there are: a graph where the
  /// device has graphs.
  Result<StepExecutable> chain(const KernelCalls& calls, uint32_t count) const;
  Stream& stream() { return stream_; }

 private:
  KernelPlan(const KernelDevice& device, KernelShape shape, Stream stream)
      : device_(device), shape_(std::move(shape)), stream_(std::move(stream)) {}

  Status plan_steps(const plan::PlanInput& input, uint64_t resident_bytes);
  Status allocate();
  Status copy_weights();
  Status fill_buffers();
  Status choose_experts(KernelCalls& calls);
  Status check_choice(uint64_t offset, size_t distinct);
  /// Whether the kernel chooses experts, or sorts rows by them.
  static bool routes(const plan::Record& record);
  std::vector<size_t> timed_records(const plan::StepPlan& step, size_t length) const;
  uint32_t copies(uint32_t rows) const;
  void rotate(plan::StepPlan& step, uint32_t copies) const;
  const plan::Buffer* find_buffer(const std::string& name, plan::BufferId& id) const;
  AtlasAddress address(plan::BufferId id) const { return buffers_.at(id).address(); }
  Result<StepExecutable> step_of(const plan::Bucket& bucket,
                                 const std::vector<size_t>& records) const;

  const KernelDevice& device_;
  KernelShape shape_;
  Stream stream_;
  plan::Plan plan_;
  exec::KernelTable kernels_;
  exec::BufferTable buffers_;
  uint32_t weight_copies_ = 1;
  std::vector<size_t> lengths_;  // records of a call, of plan_.steps
  std::vector<std::pair<plan::BufferId, uint64_t>>
      rotated_;  // buffers that each call has a part of, and its bytes
};

}  // namespace atlas::bench
