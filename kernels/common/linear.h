// Parameters of products with packed weights (quantization plugins). One struct for all formats of
// one input encoding: y[m,n] = x[m,k] W[n,k]^T, optionally added to y, and the same with a weight
// for each run of rows (experts).
#pragma once

#include "kernels/common/params.h"

namespace atlas::kernels {

/// Rows of W that a CPU layout interleaves, so that a vector's lanes are outputs.
inline constexpr uint32_t kRowGroup = 16;

// The formatter would take the members of parameter structs for arguments.
// clang-format off

ATLAS_PARAMS(LinearParams,
  const void* x;  // [m] rows of x_row_bytes
  const void* weight;
  float* y;  // [m, n]
  const uint32_t* row_count;
  float* values;  // GPU, few rows, k in parts: [groups of 16 outputs, runs of k, rows, 16]
  uint64_t x_row_bytes;
  uint64_t y_stride;
  uint32_t n;
  uint32_t k;
  uint32_t epilogue;  // ATLAS_EPILOGUE_*
  uint32_t tiles;  // GPU, few rows: groups of 16 outputs of a block; wgmma: a tile's size (gpu_wgmma.h)
);

/// Products of experts: row i of y is the product of row source(i) of x with the weight of the expert e
/// that has offsets[e] <= i < offsets[e + 1].
ATLAS_PARAMS(GroupedParams,
  const void* x;       // rows of x_row_bytes
  const void* weight;  // of expert 0
  float* y;            // [offsets[experts], n]
  const uint32_t* offsets;  // [experts + 1]
  const uint32_t* source;   // [offsets[experts]], or null: row i of x
  uint64_t x_row_bytes;
  uint64_t y_stride;
  uint64_t expert_bytes;  // from one expert's weight to the next
  uint32_t n;
  uint32_t k;
  uint32_t experts;
  uint32_t tasks;  // the grid
  uint32_t tiles;  // GPU, few rows: groups of 16 outputs of a block; wgmma: a tile's size
  uint32_t by_row;  // GPU, few rows: blocks are counted by rows; where others do a row, its do nothing
);

/// Rows of float32 into a product's input encoding. One task a row.
ATLAS_PARAMS(EncodeParams,
  const float* x;  // [m, k]
  void* out;
  const uint32_t* row_count;
  uint64_t x_stride;
  uint64_t out_row_bytes;
  uint32_t k;
  uint32_t reserved;
);

/// Rows in the input encoding "bf16_w64" (gpu_wgmma.h) in the order of experts' runs there.
ATLAS_PARAMS(RunsParams,
  const void* x;
  void* out;
  const uint32_t* offsets;  // as in GroupedParams
  const uint32_t* source;
  uint32_t k;
  uint32_t reserved;
);

/// y[r,:] = W[id(r),:] as float32, with id(r) at ids + r * id_stride bytes. One task a row.
ATLAS_PARAMS(GatherParams,
  const void* weight;
  const void* ids;
  float* y;  // [m, k]
  const uint32_t* row_count;
  uint64_t y_stride;
  uint32_t id_stride;
  uint32_t n;
  uint32_t k;
  uint32_t reserved;
);

// clang-format on
}  // namespace atlas::kernels
