// The kernels that every platform must have: the planner names them, the audit asks for them.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/common/core.h"

namespace atlas::kernels {

/// A kernel's name and the digest of the parameter struct that the host fills for it.
struct CoreKernel {
  const char* name;
  uint64_t digest;
};

/// One line for each struct of core.h, in its order.
inline constexpr std::array kCoreKernels = {
    CoreKernel{"control_fetch", kControlFetchParamsDigest},
    CoreKernel{"control_commit", kControlCommitParamsDigest},
    CoreKernel{"rms_norm", kRmsNormParamsDigest},
    CoreKernel{"rope", kRopeParamsDigest},
    CoreKernel{"silu_mul", kSiluMulParamsDigest},
    CoreKernel{"add", kAddParamsDigest},
    CoreKernel{"add_bias", kAddBiasParamsDigest},
    CoreKernel{"select_logit_rows", kSelectLogitRowsParamsDigest},
    CoreKernel{"sample", kSampleParamsDigest},
    CoreKernel{"score", kScoreParamsDigest},
};

}  // namespace atlas::kernels
