// The three forms of the device layer: CUDA (nvcc), HIP (clang) and emulated (any host compiler,
// with ATLAS_EMULATED defined). What differs between compilers before a single function is
// declared.
#pragma once

#if defined(ATLAS_EMULATED)
#define ATLAS_FORM_EMULATED 1
#elif defined(__CUDACC__)
#define ATLAS_FORM_CUDA 1
#elif defined(__HIP__)
#define ATLAS_FORM_HIP 1
#else
#error "the device layer is for nvcc, for clang's HIP, or for a host compiler with ATLAS_EMULATED"
#endif

// The architecture that a pack is built for: exactly one, also in the emulated form, which takes
// the instructions that this one has.
#if !defined(ATLAS_ARCH_H200) && !defined(ATLAS_ARCH_GB10) && !defined(ATLAS_ARCH_STRIX_HIP)
#error "define ATLAS_ARCH_H200, ATLAS_ARCH_GB10 or ATLAS_ARCH_STRIX_HIP"
#endif
#if defined(ATLAS_ARCH_STRIX_HIP)
#define ATLAS_HAS_WMMA 1  // 16x16x16 of gfx11, with its replicated half-wave
#else
#define ATLAS_HAS_MMA_SYNC 1
#endif
#if defined(ATLAS_ARCH_GB10)
#define ATLAS_HAS_MMA_FP4 1
#endif
#if defined(ATLAS_ARCH_H200)
#define ATLAS_HAS_WGMMA 1
#define ATLAS_HAS_BULK_COPY 1
#endif

#if defined(ATLAS_FORM_HIP) && !defined(__device__)
// Without the HIP runtime's headers, whose version would be the distribution's.
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#endif

#include <stdint.h>

#include "kernels/common/params.h"

#if defined(ATLAS_FORM_EMULATED)
#include "kernels/common/device/simt.h"
#define ATLAS_DEVICE inline
#define ATLAS_UNROLL
#define ATLAS_ROLLED
#define ATLAS_UNROLL_4
#define ATLAS_ROLLED
// Where a call stands in the source: a last parameter that only the emulated form has.
#define ATLAS_SITE , ::atlas::simt::Site site = ::atlas::simt::Site::current()
#define ATLAS_SITE_ONLY ::atlas::simt::Site site = ::atlas::simt::Site::current()
#define ATLAS_AT_SITE , site
#else
#define ATLAS_DEVICE __device__ __forceinline__
#define ATLAS_UNROLL _Pragma("unroll")
#define ATLAS_ROLLED _Pragma("unroll 1")
#define ATLAS_UNROLL_4 _Pragma("unroll 4")
// A loop that stays one, where copies of its body would cost registers.
#define ATLAS_ROLLED _Pragma("unroll 1")
#define ATLAS_SITE
#define ATLAS_SITE_ONLY
#define ATLAS_AT_SITE
#endif
#if defined(ATLAS_FORM_HIP)
#define __forceinline__ inline __attribute__((always_inline))
#endif

namespace atlas::device {

/// Lanes of a warp (a wave in AMD's words) on every platform: gfx1151 runs in wave32.
inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

}  // namespace atlas::device

/// Declares a kernel and opens its body, which sees `params`. `threads` is the block's size (one
/// dimension, a multiple of 32); shared memory is dynamic, its size the record's. Every pack has
/// the symbols `atlas_kernel_<name>` and `atlas_params_<name>` (the digest, read from the file).
/// Use inside namespace atlas::kernels or below.
///
/// CUDA: `atlas_waits_<name>` says that the kernel waits by itself for the one before it to end, so
/// that a step may start its blocks while the last ones of that kernel still run. With `blocks`, so
/// many of its blocks fit on a multiprocessor together as far as registers go.
#define ATLAS_DEVICE_KERNEL(name, Params, threads) \
  ATLAS_DEVICE_KERNEL_BLOCKS(name, Params, threads, 1)
#if defined(ATLAS_FORM_CUDA)
#define ATLAS_DEVICE_KERNEL_BLOCKS(name, Params, threads, blocks)                         \
  extern "C" {                                                                            \
  extern __constant__ const uint64_t atlas_params_##name;                                 \
  __constant__ const uint64_t atlas_params_##name = k##Params##Digest;                    \
  extern __constant__ const uint32_t atlas_waits_##name;                                  \
  __constant__ const uint32_t atlas_waits_##name = 1;                                     \
  }                                                                                       \
  static __device__ __forceinline__ void name##_body(const Params& params);               \
  extern "C" __global__ void __launch_bounds__(threads, blocks)                           \
      atlas_kernel_##name(const __grid_constant__ Params params) {                        \
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory"); \
    name##_body(params);                                                                  \
  }                                                                                       \
  static __device__ __forceinline__ void name##_body(const Params& params)
#elif defined(ATLAS_FORM_HIP)
#define ATLAS_DEVICE_KERNEL_BLOCKS(name, Params, threads, blocks)                            \
  extern "C" {                                                                               \
  extern __constant__ const uint64_t atlas_params_##name;                                    \
  __attribute__((used)) __constant__ const uint64_t atlas_params_##name = k##Params##Digest; \
  }                                                                                          \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(                          \
      threads, threads))) void atlas_kernel_##name(const Params params)
#else
#define ATLAS_DEVICE_KERNEL_BLOCKS(name, Params, threads, blocks)                          \
  static void name##_lane(const Params& params);                                           \
  extern "C" {                                                                             \
  extern __attribute__((visibility("default"))) const uint64_t atlas_params_##name;        \
  __attribute__((used)) const uint64_t atlas_params_##name = k##Params##Digest;            \
  extern __attribute__((visibility("default"))) const uint32_t atlas_threads_##name;       \
  __attribute__((used)) const uint32_t atlas_threads_##name = threads;                     \
  __attribute__((visibility("default"), used)) void atlas_kernel_##name(const void* raw) { \
    name##_lane(*static_cast<const Params*>(raw));                                         \
  }                                                                                        \
  }                                                                                        \
  static void name##_lane([[maybe_unused]] const Params& params)
#endif
