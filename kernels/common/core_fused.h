// Parameter structs of kernels that do several of core.h's operations at once. The planner names
// them on GPUs; their bits are those of the operations.
#pragma once

#include "kernels/common/core.h"

namespace atlas::kernels {

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `inject_norm`, the end of a block and the beginning of the next one: stream_inject of c and y into
/// x, then rms_norm of each of x's streams. Streams of at most kMaxInjectNorm elements; wider ones
/// run no task.
ATLAS_PARAMS(InjectNormParams,
  const float* c;       // [m, streams]
  const float* y;       // [m, n]
  float* x;             // [m, streams, n]
  const float* weight;  // [n], or [streams, n]
  float* normed;        // [m, streams, n]
  const uint32_t* row_count;
  uint64_t c_stride;
  uint64_t y_stride;
  uint64_t x_stride;
  uint64_t normed_stride;
  uint32_t streams;
  uint32_t n;
  uint32_t weight_stream_stride;  // 0: one weight for all streams
  uint32_t normed_stream_stride;
  float epsilon;
  uint32_t reserved;
  void* encoded;  // of normed: core.h
  void* encoded_f16;
);
inline constexpr uint32_t kMaxInjectNorm = 4096;

/// `combine_inject_norm`: combine_experts, then inject_norm with its y; of at most
/// kMaxCombineInjectNorm elements.
struct CombineInjectNormParams {
  CombineExpertsParams combine;
  InjectNormParams inject;  // `y` is combine's
};
inline constexpr uint64_t kCombineInjectNormParamsDigest =
    combined_digest({kCombineExpertsParamsDigest, kInjectNormParamsDigest});
inline constexpr uint32_t kMaxCombineInjectNorm = 2560;

/// `norm_gate`: rms_norm of groups of at most kNormNarrow elements, then gate_mul of what it made,
/// in place. `encoded` of gate: groups are multiples of 32 elements, and a row one of 128.
struct NormGateParams {
  RmsNormParams norm;  // nothing encoded
  GateMulParams gate;  // x, y and their groups are norm's y
};
inline constexpr uint64_t kNormGateParamsDigest =
    combined_digest({kRmsNormParamsDigest, kGateMulParamsDigest});

/// `choose_experts` (grid 1): route, then group_experts of what it chose; for few rows: those that
/// chooses_together of core_grids.h allows.
struct ChooseExpertsParams {
  RouteParams route;
  GroupExpertsParams group;
};
inline constexpr uint64_t kChooseExpertsParamsDigest =
    combined_digest({kRouteParamsDigest, kGroupExpertsParamsDigest});

// clang-format on
}  // namespace atlas::kernels
