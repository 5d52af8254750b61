// Launches of a step's records: the room's own header.
#pragma once

#include <cstddef>
#include <vector>

#include "daemon/exec/steps.h"

namespace atlas::exec {

/// Records with their kernels and the addresses of their buffers in place, in order. The plan
/// outlives them.
struct StepLaunches {
  std::vector<std::vector<std::byte>> params;  // what the launches point to
  std::vector<Launch> launches;
};

/// Errors: kInternal for a record with a relocation outside of its parameters or of its buffer.
Result<StepLaunches> step_launches(const plan::Plan& plan, const plan::StepPlan& step,
                                   const KernelTable& kernels, const BufferTable& buffers);

}  // namespace atlas::exec
