// Copies of whole pieces of memory by Hopper's copy engine, and the barriers in shared memory that
// count what they bring. Not part of device.h: a kernel that is made of them includes this.
//
// A barrier passes from phase to phase; a phase ends when all its arrivals and all bytes that were
// expected in it have come. Who has waited for the end of a phase sees what was written before each
// arrival in it, and what its copies brought, matrix instructions too. Source: PTX ISA 9.0,
// "mbarrier" and "cp.async.bulk".
#pragma once

#include "kernels/common/device/device.h"

#if defined(ATLAS_HAS_BULK_COPY)

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

/// True in one lane of the warp; all come here.
ATLAS_DEVICE bool elect_lane() {
#if defined(ATLAS_FORM_CUDA)
  uint32_t elected;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.u32 %0, 1, 0, one;\n}"
               : "=r"(elected));
  return elected != 0;
#else
  return lane_index() == 0;
#endif
}

/// Begins a copy of `bytes` (a multiple of 16, as are both addresses) from global to shared memory,
/// which the barrier's present phase expects.
ATLAS_DEVICE void bulk_copy(void* shared_to, const void* from, uint32_t bytes,
                            PhaseBarrier* barrier ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared_to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#else
  simt::bulk_copy(shared_to, from, bytes, barrier, site);
#endif
}

/// Registers of a lane from here on; all four warps that get registers together come here. The
/// kernel begins with what its threads share equally.
template <uint32_t kRegisters>
ATLAS_DEVICE void give_registers() {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <uint32_t kRegisters>
ATLAS_DEVICE void take_registers() {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace atlas::device

#endif  // ATLAS_HAS_BULK_COPY
