// Kernels that begin before the kernel before them in a step has ended. Until such a kernel has
// called previous_done() it reads only what no kernel of a step writes, such as weights.
#pragma once

#include "kernels/common/device/form.h"

/// As ATLAS_DEVICE_KERNEL_BLOCKS, for a body that calls device::previous_done() on every way.
#if defined(ATLAS_FORM_CUDA)
#define ATLAS_EARLY_KERNEL(name, Params, threads, blocks)                   \
  extern "C" {                                                              \
  extern __constant__ const uint64_t atlas_params_##name;                   \
  __constant__ const uint64_t atlas_params_##name = k##Params##Digest;      \
  extern __constant__ const uint32_t atlas_waits_##name;                    \
  __constant__ const uint32_t atlas_waits_##name = 1;                       \
  }                                                                         \
  static __device__ __forceinline__ void name##_body(const Params& params); \
  extern "C" __global__ void __launch_bounds__(threads, blocks)             \
      atlas_kernel_##name(const __grid_constant__ Params params) {          \
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");         \
    name##_body(params);                                                    \
  }                                                                         \
  static __device__ __forceinline__ void name##_body(const Params& params)
#else
#define ATLAS_EARLY_KERNEL(name, Params, threads, blocks) \
  ATLAS_DEVICE_KERNEL_BLOCKS(name, Params, threads, blocks)
#endif

namespace atlas::device {

/// Waits until the kernel before this one has ended and what it wrote can be read.
ATLAS_DEVICE void previous_done() {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace atlas::device
