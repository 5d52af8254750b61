// Puts a checkpoint's weights into their resident layout on the device.
#pragma once

#include <functional>

#include "daemon/device/device.h"
#include "daemon/exec/buffers.h"
#include "daemon/plan/planner.h"

namespace atlas::exec {

/// Bytes of resident weights written so far, and all of them.
using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

/// Packs every weight and vector of `input`'s plan and copies it into place, slice by slice, on
/// `threads` threads. Takes host memory for the largest module's tensors besides. `stop` ends it
/// early with kCancelled. Errors name module and plugin, or the tensor and its file: kDataLoss if
/// that was cut short since it was opened.
Status load_weights(const plan::PlanInput& input, const plan::Plan& plan,
                    const BufferTable& buffers, Stream& stream, uint32_t threads,
                    const LoadProgress& progress, const std::function<bool()>& stop);

}  // namespace atlas::exec
