// Turns launches into records: all checks happen here, none when a step runs.
#include "plugins/platform_cpu/step.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "plugins/platform_cpu/failure.h"

namespace atlas::platform_cpu {
namespace {

// What the portable runtimes take at least; CUDA before 12.1 refuses more.
constexpr uint32_t kMaxParamsBytes = 4096;
constexpr size_t kLine = 64;

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

[[noreturn]] void refuse(uint32_t index, const AtlasLaunch& launch, const std::string& reason) {
  const std::string name = launch.name == nullptr ? "unnamed" : launch.name;
  throw Failure(ATLAS_INVALID_ARGUMENT,
                "launch " + std::to_string(index) + " (" + name + ") " + reason);
}

uint32_t task_count(uint32_t index, const AtlasLaunch& launch) {
  uint64_t tasks = 1;
  for (const uint32_t side : launch.grid) {
    if (side == 0) refuse(index, launch, "has a grid of 0 tasks");
    // Each factor is below 2^32 and the product so far too, so 64 bits hold it.
    tasks *= side;
    if (tasks > std::numeric_limits<uint32_t>::max()) {
      refuse(index, launch, "has more than 2^32 - 1 tasks in its grid");
    }
  }
  return static_cast<uint32_t>(tasks);
}

void check(uint32_t index, const AtlasLaunch& launch, const Step::KnownKernel& known_kernel) {
  if (!known_kernel(launch.kernel)) {
    refuse(index, launch,
           "names kernel handle " + std::to_string(launch.kernel) +
               ", which no module of this device gave out");
  }
  if (launch.params_size > kMaxParamsBytes) {
    refuse(index, launch,
           "has " + std::to_string(launch.params_size) + " bytes of parameters; at most " +
               std::to_string(kMaxParamsBytes) + " are taken");
  }
  if (launch.params_size != 0 && launch.params == nullptr) {
    refuse(index, launch, "has a params_size and no params");
  }
}

}  // namespace

ScratchBlock::ScratchBlock(uint32_t threads, uint32_t bytes)
    : bytes_(bytes), stride_(round_up(std::max<size_t>(bytes, 1))), block_(stride_ * threads) {}

Step::Step(const AtlasLaunch* launches, uint32_t count, AtlasStepMode mode,
           const KnownKernel& known_kernel,
           const std::function<std::shared_ptr<const ScratchBlock>(uint32_t)>& scratch_for)
    : mode_(mode) {
  if (mode != ATLAS_STEP_GRAPH && mode != ATLAS_STEP_EAGER) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "step mode " + std::to_string(mode) + " is unknown");
  }
  if (launches == nullptr || count == 0) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "a step needs at least one launch");
  }
  // The array's stride is the caller's size of the struct, which a later minor version may extend.
  const uint32_t stride = launches->struct_size;
  if (stride < sizeof(AtlasLaunch)) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "AtlasLaunch has " + std::to_string(stride) +
                                              " bytes, this plugin needs " +
                                              std::to_string(sizeof(AtlasLaunch)));
  }
  const auto launch_at = [&](uint32_t i) -> const AtlasLaunch& {
    return *reinterpret_cast<const AtlasLaunch*>(reinterpret_cast<const char*>(launches) +
                                                 size_t{stride} * i);
  };
  size_t params_bytes = kLine;
  uint32_t scratch_bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const AtlasLaunch& launch = launch_at(i);
    if (launch.struct_size != stride) refuse(i, launch, "has another struct_size than launch 0");
    check(i, launch, known_kernel);
    params_bytes += round_up(launch.params_size);
    scratch_bytes = std::max(scratch_bytes, launch.shared_bytes);
  }
  params_ = std::make_unique<AlignedBlock>(params_bytes);
  records_.reserve(count);
  std::byte* params = params_->data();
  for (uint32_t i = 0; i < count; ++i) {
    const AtlasLaunch& launch = launch_at(i);
    if (launch.params_size != 0) std::memcpy(params, launch.params, launch.params_size);
    records_.push_back(
        {reinterpret_cast<kernels::cpu::Kernel>(launch.kernel), params, task_count(i, launch)});
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
