// The CUDA runtime of a platform: the driver's entry points behind gpu::Runtime.
#pragma once

#include <memory>

#include "plugins/gpu_common/options.h"
#include "plugins/gpu_common/runtime.h"

namespace atlas::platform_cuda {

/// Opens the driver and the device that `options` choose: of the platform's compute capability, and
/// of the ordinal if one is given. Throws sdk::Failure: ATLAS_FAILED_PRECONDITION without a driver
/// that can be used, ATLAS_NOT_FOUND without such a device; the message lists those that are there.
std::unique_ptr<gpu::Runtime> open_cuda(const gpu::Options& options);

}  // namespace atlas::platform_cuda
