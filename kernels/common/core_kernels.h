// The kernels that every platform must have, and those of GPUs: the planner names them, the audit
// asks for them.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/common/core.h"
#include "kernels/common/core_fused.h"

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
    CoreKernel{"copy_groups", kCopyGroupsParamsDigest},
    CoreKernel{"gate_mul", kGateMulParamsDigest},
    CoreKernel{"silu", kSiluParamsDigest},
    CoreKernel{"select_rows", kSelectRowsParamsDigest},
    CoreKernel{"stream_mix", kStreamMixParamsDigest},
    CoreKernel{"stream_inject", kStreamInjectParamsDigest},
    CoreKernel{"ngram_keys", kNgramKeysParamsDigest},
    CoreKernel{"feed_take", kFeedTakeParamsDigest},
    CoreKernel{"ngram_gate", kNgramGateParamsDigest},
    CoreKernel{"ngram_conv", kNgramConvParamsDigest},
    CoreKernel{"route", kRouteParamsDigest},
    CoreKernel{"group_experts", kGroupExpertsParamsDigest},
    CoreKernel{"combine_experts", kCombineExpertsParamsDigest},
    CoreKernel{"sample", kSampleParamsDigest},
    CoreKernel{"draft_begin", kDraftBeginParamsDigest},
    CoreKernel{"draft_sample", kDraftSampleParamsDigest},
    CoreKernel{"score", kScoreParamsDigest},
};

/// Those that the planner names on GPUs beside them.
inline constexpr std::array kGpuCoreKernels = {
    CoreKernel{"sample_scan", kSampleParamsDigest},
    CoreKernel{"draft_scan", kDraftSampleParamsDigest},
    CoreKernel{"inject_norm", kInjectNormParamsDigest},
    CoreKernel{"combine_inject_norm", kCombineInjectNormParamsDigest},
    CoreKernel{"choose_experts", kChooseExpertsParamsDigest},
    CoreKernel{"norm_gate", kNormGateParamsDigest},
};

}  // namespace atlas::kernels
