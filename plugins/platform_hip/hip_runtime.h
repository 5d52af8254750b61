// The HIP runtime of a platform: libamdhip64's entry points behind gpu::Runtime.
#pragma once

#include <memory>

#include "plugins/gpu_common/options.h"
#include "plugins/gpu_common/runtime.h"

namespace atlas::platform_hip {

/// Opens the runtime and the device that `options` choose: of the platform's architecture, and of
/// the ordinal if one is given. Throws sdk::Failure: ATLAS_FAILED_PRECONDITION without a runtime
/// that can be used, ATLAS_NOT_FOUND without such a device; the message lists those that are there.
std::unique_ptr<gpu::Runtime> open_hip(const gpu::Options& options);

}  // namespace atlas::platform_hip
