#include "daemon/exec/step_walk.h"

#include <algorithm>

#include "daemon/exec/launches.h"

namespace atlas::exec {

Result<StepExecutable> step_of_records(const std::shared_ptr<Device>& device,
                                       const plan::Plan& plan, const plan::Bucket& bucket,
                                       const KernelTable& kernels, const BufferTable& buffers,
                                       std::span<const size_t> records, StepMode mode) {
  const plan::StepPlan* step = plan.find(bucket);
  if (step == nullptr) return not_found("the plan has no step {}", bucket.to_string());
  ATLAS_ASSIGN_OR_RETURN(const StepLaunches all, step_launches(plan, *step, kernels, buffers));
  std::vector<Launch> chosen;
  std::vector<std::vector<uint32_t>> after(records.size());  // places among the chosen
  for (size_t i = 0; i < records.size(); ++i) {
    Launch launch = all.launches.at(records[i]);
    const size_t first = records.front();
    for (const uint32_t before : launch.after) {
      if (records[i] == first + i && before >= first) {
        after[i].push_back(static_cast<uint32_t>(before - first));
      }
    }
    launch.after = after[i];
    chosen.push_back(std::move(launch));
  }
  return StepExecutable::create(device, chosen, mode);
}

Result<StepWalk> StepWalk::build(const std::shared_ptr<Device>& device, const plan::Plan& plan,
                                 const plan::Bucket& bucket, const KernelTable& kernels,
                                 const BufferTable& buffers) {
  const plan::StepPlan* step = plan.find(bucket);
  if (step == nullptr) return not_found("the plan has no step {}", bucket.to_string());
  ATLAS_ASSIGN_OR_RETURN(StepLaunches all, step_launches(plan, *step, kernels, buffers));
  for (Launch& launch : all.launches) launch.after = {};  // places in the whole list
  StepWalk walk(plan, bucket, buffers);
  for (size_t begin = 0; begin < step->records.size();) {
    const uint32_t operation = step->records[begin].program_index;
    size_t end = begin + 1;
    while (end < step->records.size() && step->records[end].program_index == operation) ++end;
    ATLAS_ASSIGN_OR_RETURN(
        StepExecutable part,
        StepExecutable::create(device, std::span(all.launches).subspan(begin, end - begin),
                               StepMode::kEager));
    walk.parts_.push_back({operation, std::move(part)});
    begin = end;
  }
  return walk;
}

Result<std::optional<uint32_t>> StepWalk::next(Stream& stream) {
  if (next_ == parts_.size()) return std::optional<uint32_t>();
  const Part& part = parts_[next_++];
  ATLAS_RETURN_IF_ERROR(part.step.launch(stream));
  ATLAS_RETURN_IF_ERROR(stream.synchronize());
  return std::optional(part.operation);
}

Result<std::vector<float>> StepWalk::read(const plan::StepProgram& program,
                                          const plan::Value& value, uint32_t rows,
                                          Stream& stream) const {
  const std::string name =
      plan::activation_buffer_name(program.activations.at(value.activation).name);
  const auto found = std::find_if(plan_->buffers.begin(), plan_->buffers.end(),
                                  [&](const plan::Buffer& one) { return one.name == name; });
  const uint64_t bytes = uint64_t{rows} * value.stride * sizeof(float);
  if (found == plan_->buffers.end() || found->bytes < bytes) {
    return invalid_argument("step {} has no {} with {} rows", bucket_.to_string(), name, rows);
  }
  std::vector<float> all(uint64_t{rows} * value.stride);
  const auto id = static_cast<plan::BufferId>(found - plan_->buffers.begin());
  if (!all.empty()) {
    ATLAS_RETURN_IF_ERROR(stream.copy_to_host(all.data(), buffers_.at(id).address(), bytes));
  }
  if (value.width == value.stride) return all;
  std::vector<float> columns;
  columns.reserve(rows * value.width);
  for (uint32_t row = 0; row < rows; ++row) {
    const auto first = all.begin() + static_cast<ptrdiff_t>(row * value.stride + value.first);
    columns.insert(columns.end(), first, first + static_cast<ptrdiff_t>(value.width));
  }
  return columns;
}

}  // namespace atlas::exec
