// A CPU pack with one kernel, STUB_KERNEL.
#include "kernels/cpu/kernel.h"
#include "tests/support/bad_plugins/test_kernels.h"

namespace atlas::stub {

// Twice, so that STUB_KERNEL is replaced before it is glued to a prefix.
#define STUB_CPU_KERNEL(name) ATLAS_CPU_KERNEL(name, TestScaleParams)
STUB_CPU_KERNEL(STUB_KERNEL) {
  for (uint32_t i = 0; i < params.n; ++i) params.y[i] = params.factor * params.x[i];
}

}  // namespace atlas::stub
