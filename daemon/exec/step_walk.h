// Steps in parts, for tools: run operation by operation, to look at what each one leaves, or any of
// their records by themselves, to time them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "daemon/exec/steps.h"
#include "daemon/plan/step_builder.h"

namespace atlas::exec {

/// Those records of a bucket's step whose places `records` names as a step of their own, in this
/// order: one after the other, but those that stand side by side from the first on as in the plan.
/// Errors: kNotFound for a bucket that the plan has not; kUnimplemented for a graph on a device
/// that has none.
Result<StepExecutable> step_of_records(const std::shared_ptr<Device>& device,
                                       const plan::Plan& plan, const plan::Bucket& bucket,
                                       const KernelTable& kernels, const BufferTable& buffers,
                                       std::span<const size_t> records, StepMode mode);

/// The eager walk of one bucket, cut where operations end. The plan outlives it.
class StepWalk {
 public:
  static Result<StepWalk> build(const std::shared_ptr<Device>& device, const plan::Plan& plan,
                                const plan::Bucket& bucket, const KernelTable& kernels,
                                const BufferTable& buffers);

  const plan::Bucket& bucket() const { return bucket_; }
  /// The next part is the step's first one again.
  void restart() { next_ = 0; }
  /// Runs the next part of the step and waits for it. Its operation's place in the step's program
  /// (kNoOperation for the frame around them); nothing once the whole step has run.
  Result<std::optional<uint32_t>> next(Stream& stream);
  /// What `value` of `program` holds now: [rows, value.width]. Errors: kInvalidArgument if the step
  /// has no such activation or it has fewer rows.
  Result<std::vector<float>> read(const plan::StepProgram& program, const plan::Value& value,
                                  uint32_t rows, Stream& stream) const;

 private:
  struct Part {
    uint32_t operation = 0;
    StepExecutable step;
  };
  StepWalk(const plan::Plan& plan, const plan::Bucket& bucket, BufferTable buffers)
      : plan_(&plan), bucket_(bucket), buffers_(std::move(buffers)) {}

  const plan::Plan* plan_;
  plan::Bucket bucket_;
  BufferTable buffers_;
  std::vector<Part> parts_;
  size_t next_ = 0;
};

}  // namespace atlas::exec
