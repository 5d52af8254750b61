// Where a lane stands in its block and grid; barriers, fences, waiting.
#pragma once

#include "kernels/common/device/form.h"

namespace atlas::device {

/// Index of the thread in its block. Blocks have one dimension.
ATLAS_DEVICE uint32_t thread_index() {
#if defined(ATLAS_FORM_CUDA)
  return threadIdx.x;
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_workitem_id_x();
#else
  return simt::lane_view->thread;
#endif
}

/// The thread's place in its warp, and the warp's in its block.
ATLAS_DEVICE uint32_t lane_index() { return thread_index() % kWarpLanes; }
ATLAS_DEVICE uint32_t warp_index() { return thread_index() / kWarpLanes; }

/// The same value, of which the compiler knows nothing: what is computed from it stays in the loop
/// where it stands. (clang for gfx1151 moves addresses out of loops until registers spill.)
ATLAS_DEVICE uint32_t opaque(uint32_t value) {
#if defined(ATLAS_FORM_HIP)
  asm volatile("" : "+v"(value));
#endif
  return value;
}

/// Dimension 0, 1 or 2 of the block's place in the grid.
template <uint32_t kDimension = 0>
ATLAS_DEVICE uint32_t block_index() {
  static_assert(kDimension < 3);
#if defined(ATLAS_FORM_CUDA)
  return kDimension == 0 ? blockIdx.x : (kDimension == 1 ? blockIdx.y : blockIdx.z);
#elif defined(ATLAS_FORM_HIP)
  return kDimension == 0   ? __builtin_amdgcn_workgroup_id_x()
         : kDimension == 1 ? __builtin_amdgcn_workgroup_id_y()
                           : __builtin_amdgcn_workgroup_id_z();
#else
  return simt::lane_view->block[kDimension];
#endif
}

/// Threads of a block.
ATLAS_DEVICE uint32_t block_threads() {
#if defined(ATLAS_FORM_CUDA)
  return blockDim.x;
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_workgroup_size_x();
#else
  return simt::lane_view->threads;
#endif
}

/// Blocks of the grid in a dimension.
template <uint32_t kDimension = 0>
ATLAS_DEVICE uint32_t grid_blocks() {
  static_assert(kDimension < 3);
#if defined(ATLAS_FORM_CUDA)
  return kDimension == 0 ? gridDim.x : (kDimension == 1 ? gridDim.y : gridDim.z);
#elif defined(ATLAS_FORM_HIP)
  // The packet counts work-items; blocks have one dimension.
  return kDimension == 0   ? __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()
         : kDimension == 1 ? __builtin_amdgcn_grid_size_y()
                           : __builtin_amdgcn_grid_size_z();
#else
  return simt::lane_view->grid[kDimension];
#endif
}

/// Waits for all threads of the block: what each wrote before is seen by all after. Every thread of
/// the block comes to the same call.
ATLAS_DEVICE void block_barrier(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  __syncthreads();
#elif defined(ATLAS_FORM_HIP)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#else
  simt::block_barrier(site);
#endif
}

/// The same among the lanes of `mask` in a warp. The mask names exactly the lanes that come here.
ATLAS_DEVICE void warp_barrier(uint32_t mask = kAllLanes ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  __syncwarp(mask);
#elif defined(ATLAS_FORM_HIP)
  // Lanes of a wave run in step; only the order of their accesses must be kept.
  static_cast<void>(mask);
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#else
  simt::warp_barrier(mask, site);
#endif
}

/// What the thread wrote before is seen by other blocks (or by the host) before what it writes
/// after.
ATLAS_DEVICE void device_fence(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  __threadfence();
#elif defined(ATLAS_FORM_HIP)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent");
#else
  simt::fence(simt::Order::kAcqRel, site);
#endif
}
ATLAS_DEVICE void system_fence(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  __threadfence_system();
#elif defined(ATLAS_FORM_HIP)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "");
#else
  simt::fence(simt::Order::kAcqRel, site);
#endif
}

/// Orders nothing at run time: HIP's compiler moves no instruction across it. Where it would bring
/// so many loads forward that registers spill.
ATLAS_DEVICE void schedule_barrier() {
#if defined(ATLAS_FORM_HIP)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

/// The same word, of which HIP's compiler knows nothing: what follows from it is computed again
/// where it is used, rather than kept in registers.
ATLAS_DEVICE uint32_t forgotten(uint32_t word) {
#if defined(ATLAS_FORM_HIP)
  asm volatile("" : "+v"(word));
#endif
  return word;
}

/// In a loop that waits for another block or for the host: lets others run.
ATLAS_DEVICE void pause(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  __nanosleep(100);
#elif defined(ATLAS_FORM_HIP)
  __builtin_amdgcn_s_sleep(2);
#else
  simt::pause(site);
#endif
}

/// Nanoseconds of a clock that all blocks share; only differences mean something.
ATLAS_DEVICE uint64_t clock_ns() {
#if defined(ATLAS_FORM_CUDA)
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#elif defined(ATLAS_FORM_HIP)
  return __builtin_readsteadycounter() * 10;  // 100 MHz on gfx11
#else
  return simt::clock_ns();
#endif
}

}  // namespace atlas::device
