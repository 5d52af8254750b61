// Parameter structs of int8g's kernels: filled by plugin.cpp, read by kernels_cpu.cpp.
#pragma once

#include "kernels/common/params.h"

namespace int8g {

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `int8g_linear`: y[m,n] = x[m,k] W[n,k]^T, or y += it. One task a group of 16 outputs, for all rows.
ATLAS_PARAMS(Int8gLinearParams,
  const float* x;     // [m, k]
  const void* weight; // format.h
  float* y;           // [m, n]
  const uint32_t* row_count;
  uint64_t x_stride;  // elements
  uint64_t y_stride;  // elements
  uint32_t n;
  uint32_t k;
  uint32_t group;
  uint32_t epilogue;  // ATLAS_EPILOGUE_*
);

/// `int8g_grouped`: row i of y is row source[i] of x times the weight of the expert e with offsets[e] <= i <
/// offsets[e + 1]. One task a group of 16 outputs, for all rows of all experts.
ATLAS_PARAMS(Int8gGroupedParams,
  const float* x;
  const void* weight;       // of expert 0; the others follow, expert_bytes apart
  float* y;                 // [offsets[experts], n]
  const uint32_t* offsets;  // [experts + 1]
  const uint32_t* source;   // [offsets[experts]], or null: row i
  uint64_t x_stride;  // elements
  uint64_t y_stride;  // elements
  uint64_t expert_bytes;
  uint32_t n;
  uint32_t k;
  uint32_t group;
  uint32_t experts;
);

/// `int8g_gather`: y[r,:] = W[id(r),:], with id(r) at ids + r * id_stride bytes; an id of n or more gives
/// zeros. One task a row.
ATLAS_PARAMS(Int8gGatherParams,
  const void* weight;
  const void* ids;
  float* y;  // [m, k]
  const uint32_t* row_count;
  uint64_t y_stride;  // elements
  uint32_t id_stride;
  uint32_t n;
  uint32_t k;
  uint32_t group;
);

// clang-format on

}  // namespace int8g
