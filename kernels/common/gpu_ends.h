// Products of few rows that end in an operation of the core, in the same launch, on GPUs: their
// parameters and launches. Bits are those of the product and of the operation behind it.
#pragma once

#include "kernels/common/gpu_products.h"

namespace atlas::kernels {

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `linear_<format>_silu`: the product, of whose first `columns` silu of core.h makes what they are.
/// `encoded`: those columns, as in core.h.
ATLAS_PARAMS(SiluEndParams,
  void* encoded;
  uint32_t columns;
  float scale;
);
struct LinearSiluParams {
  LinearParams linear;  // `values` in any case; without `epilogue` and `tiles`
  SiluEndParams end;
};
inline constexpr uint64_t kLinearSiluParamsDigest =
    combined_digest({kLinearParamsDigest, kSiluEndParamsDigest});

/// `linear_<format>_mean`: stream_mix of core.h, whose gates the product is; they are written
/// nowhere. `y` of the product is stream_mix's u.
ATLAS_PARAMS(MeanEndParams,
  const float* x;  // [m, streams, columns]
  void* encoded;   // of y: as above
  void* encoded_f16;
  uint64_t x_stride;
  uint32_t columns;  // of a stream, a multiple of 32; `n` is one of it
  uint32_t reserved;
);
struct LinearMeanParams {
  LinearParams linear;  // without `values`, `epilogue` and `tiles`
  MeanEndParams end;
};
inline constexpr uint64_t kLinearMeanParamsDigest =
    combined_digest({kLinearParamsDigest, kMeanEndParamsDigest});

// clang-format on

/// A block has whole blocks of the encoding: two groups of outputs, in `mean` of each stream.
inline constexpr uint32_t kEndGroups = kBlockElements / kTileOutputs;

/// `group_bytes`: of 16 outputs. As k is divided, for at most kFewRows rows.
constexpr ProductLaunch silu_launch(const GpuTraits& gpu, uint64_t n, uint64_t k, uint32_t max_rows,
                                    uint64_t group_bytes) {
  const uint32_t warps = few_warps(gpu.family);
  const uint64_t blocks = whole_units(tiles_of(n), kEndGroups);
  ProductLaunch launch{blocks, 1, warps * device::kMatrixLanes,
                       few_shared_bytes(gpu, warps, max_rows)};
  launch.z = few_parts(gpu, blocks * kTileOutputs, k, kEndGroups * group_bytes);
  launch.workspace_bytes =
      tiles_of(n) * whole_units(k, kBf16Run) * max_rows * kTileOutputs * sizeof(float);
  return launch;
}

inline constexpr uint32_t kMostMeanStreams = 4;
/// Whether the values of a block's tasks stand in shared memory together, beside its part of x.
constexpr bool takes_mean(const GpuTraits& gpu, uint64_t n, uint64_t k, uint64_t columns) {
  if (columns == 0 || columns % kBlockElements != 0 || n % columns != 0) return false;
  const uint64_t streams = n / columns;
  return streams <= kMostMeanStreams &&
         kEndGroups * streams * whole_units(k, kBf16Run) <= few_tasks(few_warps(gpu.family));
}
constexpr ProductLaunch mean_launch(const GpuTraits& gpu, uint64_t n, uint64_t columns,
                                    uint32_t max_rows) {
  const uint32_t warps = few_warps(gpu.family);
  const auto streams = static_cast<uint32_t>(n / columns);
  return {columns / kBlockElements, 1, warps * device::kMatrixLanes,
          few_shared_bytes(gpu, warps, max_rows) +
              max_rows * streams * kBlockElements * static_cast<uint32_t>(sizeof(float))};
}

}  // namespace atlas::kernels
