// Grid, block and shared memory of the core's kernels on GPUs, from their parameters and the rows
// of a bucket. A block a row unless a kernel says otherwise here.
#pragma once

#include "kernels/common/core.h"
#include "kernels/common/core_fused.h"
#include "kernels/common/core_grids.h"
#include "kernels/common/gpu_grids.h"

namespace atlas::kernels {

struct LaunchShape {
  uint32_t x = 1, y = 1, z = 1;  // blocks
  uint32_t threads = 32;         // of a block
  uint32_t shared_bytes = 0;
};

/// `rows`: what the grid is counted in: rows of the bucket, sequences, logit rows; 1 for one block.
template <typename Params>
constexpr LaunchShape gpu_shape(const Params&, uint32_t rows) {
  return {rows, 1, 1, kRowThreads, 0};
}
constexpr LaunchShape gpu_shape(const ControlFetchParams&, uint32_t) {
  return {1, 1, 1, kControlThreads, kControlSharedBytes};
}
constexpr LaunchShape gpu_shape(const ControlCommitParams&, uint32_t) {
  return {1, 1, 1, kControlThreads, kControlSharedBytes};
}
constexpr LaunchShape gpu_shape(const DraftBeginParams&, uint32_t) {
  return {1, 1, 1, kControlThreads, kControlSharedBytes};
}
constexpr LaunchShape gpu_shape(const RmsNormParams& params, uint32_t rows) {
  if (params.n <= kNormNarrow) {
    const uint64_t groups = uint64_t{rows} * params.groups;
    return {blocks_of(groups, kNormThreads / kNormNarrowThreads), 1, 1, kNormThreads, 0};
  }
  return {rows, params.groups, 1, kNormThreads, kNormSharedBytes};
}
constexpr LaunchShape gpu_shape(const NormGateParams& params, uint32_t rows) {
  return gpu_shape(params.norm, rows);
}
constexpr LaunchShape gpu_shape(const AddParams& params, uint32_t rows) {
  return {rows, row_parts(params.n), 1, kRowThreads, 0};
}
constexpr LaunchShape gpu_shape(const CopyGroupsParams& params, uint32_t rows) {
  return {rows, params.groups, 1, kRowThreads, 0};
}

constexpr LaunchShape gpu_shape(const RopeParams& params, uint32_t rows) {
  return {rows, blocks_of(params.heads, rope_heads(params.rotary_dim)), 1, kRopeThreads,
          kRopeSharedBytes};
}
constexpr LaunchShape gpu_shape(const AddBiasParams& params, uint32_t rows) {
  return {rows, quad_blocks(1, params.n), 1, kQuadThreads, 0};
}
constexpr LaunchShape gpu_shape(const GateMulParams& params, uint32_t rows) {
  return {rows, quad_blocks(params.groups, params.n), 1, kQuadThreads, 0};
}
constexpr LaunchShape gpu_shape(const SiluParams& params, uint32_t rows) {
  return {rows, quad_blocks(1, params.n), 1, kQuadThreads, 0};
}
constexpr LaunchShape gpu_shape(const SiluMulParams& params, uint32_t rows) {
  return {rows, quad_blocks(1, params.n), 1, kQuadThreads, 0};
}
constexpr LaunchShape gpu_shape(const SelectRowsParams& params, uint32_t rows) {
  return {rows, quad_blocks(1, params.n), 1, kQuadThreads, 0};
}
constexpr LaunchShape gpu_shape(const StreamMixParams& params, uint32_t rows) {
  return {rows, quad_blocks(1, params.n), 1, kQuadThreads, 0};
}
constexpr LaunchShape gpu_shape(const StreamInjectParams& params, uint32_t rows) {
  return {rows, quad_blocks(1, params.n), params.streams, kQuadThreads, 0};
}
constexpr LaunchShape gpu_shape(const InjectNormParams& params, uint32_t rows) {
  return {rows, params.streams, 1, kInjectNormThreads, (kMaxInjectNorm + 4) * sizeof(float)};
}
constexpr LaunchShape gpu_shape(const CombineInjectNormParams& params, uint32_t rows) {
  return {rows, params.inject.streams, 1, kCombineInjectNormThreads,
          (kMaxCombineInjectNorm + 4) * sizeof(float)};
}
constexpr LaunchShape gpu_shape(const NgramKeysParams&, uint32_t) {
  return {1, 1, 1, kKeysThreads, 0};
}
constexpr LaunchShape gpu_shape(const FeedTakeParams&, uint32_t rows) {
  return {rows, 1, 1, kQuadThreads, sizeof(uint32_t)};
}
constexpr LaunchShape gpu_shape(const NgramGateParams& params, uint32_t rows) {
  return {rows, params.streams, 1, kGateThreads, kGateSharedBytes};
}
/// `rows`: of the bucket; channels are the parameters'.
constexpr LaunchShape gpu_shape(const NgramConvParams& params, uint32_t rows) {
  return {blocks_of(params.channels, kConvChannels), blocks_of(rows, kConvRows), 1, kConvThreads,
          0};
}
constexpr LaunchShape gpu_shape(const RouteParams&, uint32_t rows) {
  return {blocks_of(rows, kRouteThreads / 32), 1, 1, kRouteThreads, 0};
}
constexpr LaunchShape gpu_shape(const GroupExpertsParams& params, uint32_t) {
  return {blocks_of(params.experts, kGroupedExperts), 1, 1, kGroupThreads, kGroupSharedBytes};
}
constexpr LaunchShape gpu_shape(const ChooseExpertsParams&, uint32_t) {
  return {1, 1, 1, kChooseThreads, kChooseSharedBytes};
}
constexpr LaunchShape gpu_shape(const CombineExpertsParams& params, uint32_t rows) {
  return {rows, quad_blocks(1, params.n), 1, kQuadThreads, 0};
}

constexpr LaunchShape gpu_shape(const ScoreParams&, uint32_t rows) {
  return {rows, 1, 1, kScoreThreads, ScoreShared::kBytes};
}
/// `sample_scan` and `sample`; `rows`: logit rows of the bucket.
constexpr LaunchShape gpu_shape(const SampleParams&, uint32_t rows) {
  return {kSampleParts, rows, 1, kSampleThreads, SampleShared::kBytes};
}
/// `draft_scan` and `draft_sample`; `rows`: of the draft set.
constexpr LaunchShape gpu_shape(const DraftSampleParams&, uint32_t rows) {
  return {kSampleParts, rows, 1, kSampleThreads, SampleShared::kBytes};
}

}  // namespace atlas::kernels
