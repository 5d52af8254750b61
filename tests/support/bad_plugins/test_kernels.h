// Parameter structs of the kernels in the test packs.
#pragma once

#include "kernels/common/params.h"

namespace atlas::stub {

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `test_scale`: y[i] = factor * x[i].
ATLAS_PARAMS(TestScaleParams,
  const float* x;
  float* y;
  uint32_t n;
  float factor;
);

/// The same after somebody has changed it: another digest.
namespace changed {
ATLAS_PARAMS(TestScaleParams,
  const float* x;
  float* y;
  uint64_t n;
  float factor;
  uint32_t reserved;
);
}  // namespace changed

// clang-format on

}  // namespace atlas::stub
