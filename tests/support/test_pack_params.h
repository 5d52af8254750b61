// Parameter structs of the test pack: small kernels that make order, loss and repetition visible.
#pragma once

#include "kernels/common/params.h"

namespace atlas::kernels {

// clang-format off

/// `test_empty`: does nothing.
ATLAS_PARAMS(TestEmptyParams,
  uint64_t unused;
);

/// `test_iota`: out[i] = base + i for the `block` elements of each task.
ATLAS_PARAMS(TestIotaParams,
  uint32_t* out;
  uint32_t base;
  uint32_t block;
);

/// `test_mix`: x[task] = x[task] * 3 + addend; a different order gives different numbers.
ATLAS_PARAMS(TestMixParams,
  uint32_t* x;
  uint32_t addend;
  uint32_t reserved;
);

/// `test_neighbour`: y[task] = x[(task + 1) % n] + 1; wrong if x is not complete. Each task first
/// idles for a number of turns below `idle` that depends on the task and its value.
ATLAS_PARAMS(TestNeighbourParams,
  const uint32_t* x;
  uint32_t* y;
  uint32_t n;
  uint32_t idle;
);

/// `test_wait`: waits until *flag is not 0, at most timeout_ns; then *seen = 1, or 2 if it timed out.
ATLAS_PARAMS(TestWaitParams,
  const uint32_t* flag;
  uint32_t* seen;
  uint64_t timeout_ns;
);

/// `test_scratch`: out[task] = 1 if the scratch is 64-byte aligned and keeps what the task writes to
/// all its `bytes`.
ATLAS_PARAMS(TestScratchParams,
  uint32_t* out;
  uint32_t bytes;
  uint32_t reserved;
);

/// `test_float`: out[task] = x * y as the thread's floating-point environment has it.
ATLAS_PARAMS(TestFloatParams,
  float* out;
  float x;
  float y;
);

/// `test_sum`: out[task] = sum of the n floats of row `task` of x, in ascending order.
ATLAS_PARAMS(TestSumParams,
  const float* x;  // [tasks, n]
  float* out;
  uint32_t n;
  uint32_t reserved;
);

// clang-format on

}  // namespace atlas::kernels
