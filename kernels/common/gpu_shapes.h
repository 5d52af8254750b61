// Grid, block and shared memory of the core's kernels on GPUs, from their parameters and the rows
// of a bucket. A block a row unless a kernel says otherwise here.
#pragma once

#include "kernels/common/core.h"
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
constexpr LaunchShape gpu_shape(const RmsNormParams& params, uint32_t rows) {
  return {rows, params.groups, 1, kNormThreads, kNormSharedBytes};
}
constexpr LaunchShape gpu_shape(const AddParams& params, uint32_t rows) {
  return {rows, row_parts(params.n), 1, kRowThreads, 0};
}
constexpr LaunchShape gpu_shape(const SiluMulParams& params, uint32_t rows) {
  return {rows, row_parts(params.n), 1, kRowThreads, 0};
}
constexpr LaunchShape gpu_shape(const CopyGroupsParams& params, uint32_t rows) {
  return {rows, params.groups, 1, kRowThreads, 0};
}

}  // namespace atlas::kernels
