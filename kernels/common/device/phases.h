// Barriers in shared memory that pass from phase to phase, which NVIDIA's GPUs have. Not part of
// device.h: a kernel that is made of them includes this.
//
// A phase ends when all its arrivals and all bytes that were expected in it have come. Who has
// waited for the end of a phase sees what was written before each arrival in it, and what its
// copies brought, matrix instructions too. Source: PTX ISA 9.0, "mbarrier".
#pragma once

#include "kernels/common/device/device.h"

#if defined(ATLAS_HAS_MMA_SYNC)

namespace atlas::device {

/// A barrier in shared memory: 8 bytes.
struct PhaseBarrier {
  uint64_t state;
};

#if defined(ATLAS_FORM_CUDA)
ATLAS_DEVICE uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}
#endif

/// By one thread, then a block barrier: phases that each end with `arrivals` arrivals.
ATLAS_DEVICE void phase_init(PhaseBarrier* barrier, uint32_t arrivals ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;\n"
      "fence.mbarrier_init.release.cluster;\n"
      "fence.proxy.async.shared::cta;" ::"r"(shared_address(barrier)),
      "r"(arrivals)
      : "memory");
#else
  simt::phase_init(barrier, arrivals, site);
#endif
}

/// One arrival; before it ends, its phase waits for `bytes` of copies more.
ATLAS_DEVICE void phase_expect(PhaseBarrier* barrier, uint32_t bytes ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
#else
  simt::phase_arrive(barrier, bytes, site);
#endif
}
/// One arrival of the calling thread: what it wrote and read lies before the phase's end. For other
/// lanes of its warp a warp_barrier before it says so.
ATLAS_DEVICE void phase_arrive(PhaseBarrier* barrier ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
#else
  simt::phase_arrive(barrier, 0, site);
#endif
}

/// One arrival that comes when all copies have that the calling thread has begun (async_copy).
ATLAS_DEVICE void phase_arrive_copied(PhaseBarrier* barrier ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#else
  simt::phase_arrive_copied(barrier, site);
#endif
}

/// Waits until the phase of this parity has ended: phases are counted from 0, and the barrier is in
/// the one meant or in the next.
ATLAS_DEVICE void phase_wait(PhaseBarrier* barrier, uint32_t parity ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ended;\n"
      "bra again;\n"
      "ended:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#else
  simt::phase_wait(barrier, parity, site);
#endif
}

}  // namespace atlas::device

#endif  // ATLAS_HAS_MMA_SYNC
