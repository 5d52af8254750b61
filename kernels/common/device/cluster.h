// Clusters: the blocks along z of a grid run together and reach each other's shared memory (sm_90
// and later). The symbol `atlas_clusters_<name>` says so to whoever launches the kernel. Not part
// of device.h: a kernel of clusters includes this.
//
// Order: cluster_begin() or cluster_arrive(), then cluster_wait(), then the next arrival; all
// threads of all blocks take part until their block leaves. What a thread stores before an arrival,
// in another block's memory too, is there for all behind the wait. Nothing may be stored in a
// block's memory before a wait has shown that it has begun, and a block leaves only when a wait, or
// what the kernel is, says that nobody stores there any more. Source: PTX ISA 9.0,
// "barrier.cluster" and "mapa".
#pragma once

#include "kernels/common/device/device.h"
#include "kernels/common/device/early.h"

#if defined(ATLAS_HAS_CLUSTERS)

/// As ATLAS_EARLY_KERNEL, for a kernel whose blocks along z are a cluster: at most 8.
#if defined(ATLAS_FORM_CUDA)
#define ATLAS_CLUSTER_KERNEL(name, Params, threads, blocks) \
  extern "C" {                                              \
  extern __constant__ const uint32_t atlas_clusters_##name; \
  __constant__ const uint32_t atlas_clusters_##name = 1;    \
  }                                                         \
  ATLAS_EARLY_KERNEL(name, Params, threads, blocks)
#else
#define ATLAS_CLUSTER_KERNEL(name, Params, threads, blocks)                           \
  extern "C" {                                                                        \
  extern __attribute__((visibility("default"))) const uint32_t atlas_clusters_##name; \
  __attribute__((used)) const uint32_t atlas_clusters_##name = 1;                     \
  }                                                                                   \
  ATLAS_EARLY_KERNEL(name, Params, threads, blocks)
#endif

namespace atlas::device {

/// Arrives at the cluster's barrier: the block has begun. Orders no memory.
ATLAS_DEVICE void cluster_begin(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
  simt::cluster_arrive(false, site);
#endif
}
/// Arrives: what the thread has read and written is before what others do behind their wait.
ATLAS_DEVICE void cluster_arrive(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
  simt::cluster_arrive(true, site);
#endif
}
/// Waits until all threads of the cluster's blocks have arrived, but for blocks that have left.
ATLAS_DEVICE void cluster_wait(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  simt::cluster_wait(site);
#endif
}

/// Stores a float at the place of `mine`, in the shared memory of this block, in that of block `z`.
ATLAS_DEVICE void cluster_store(float* mine, uint32_t z, float value ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(mine));
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(z));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
#else
  simt::cluster_write(mine, z, &value, sizeof(value), site);
#endif
}

}  // namespace atlas::device

#endif  // ATLAS_HAS_CLUSTERS
