// Turns launches into records; they were checked before, and nothing is checked when a step runs.
#include "plugins/platform_cpu/step.h"

#include <algorithm>
#include <cstring>

namespace atlas::platform_cpu {
namespace {

constexpr size_t kLine = 64;

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

ScratchBlock::ScratchBlock(uint32_t threads, uint32_t bytes)
    : bytes_(bytes), stride_(round_up(std::max<size_t>(bytes, 1))), block_(stride_ * threads) {}

Step::Step(const sdk::LaunchList& launches, AtlasStepMode mode, const ScratchSource& scratch_for)
    : mode_(mode) {
  size_t params_bytes = kLine;
  uint32_t scratch_bytes = 0;
  for (uint32_t i = 0; i < launches.size(); ++i) {
    params_bytes += round_up(launches[i].params_size);
    scratch_bytes = std::max(scratch_bytes, launches[i].shared_bytes);
  }
  params_ = std::make_unique<AlignedBlock>(params_bytes);
  records_.reserve(launches.size());
  std::byte* params = params_->data();
  for (uint32_t i = 0; i < launches.size(); ++i) {
    const AtlasLaunch& launch = launches[i];
    if (launch.params_size != 0) std::memcpy(params, launch.params, launch.params_size);
    records_.push_back(
        {reinterpret_cast<kernels::cpu::Kernel>(launch.kernel), params, launches.tasks(i)});
    params += round_up(launch.params_size);
  }
  scratch_ = scratch_for(scratch_bytes);
}

void Step::run(Team& team) const {
  const Scratch scratch = scratch_->view();
  if (mode_ == ATLAS_STEP_GRAPH) {
    team.run(records_.data(), static_cast<uint32_t>(records_.size()), scratch);
    return;
  }
  for (const Record& record : records_) team.run(&record, 1, scratch);
}

}  // namespace atlas::platform_cpu
