// Copies of whole pieces of memory by Hopper's copy engine, which barriers of phases count
// (phases.h). Not part of device.h: a kernel that is made of them includes this. Source: PTX ISA
// 9.0, "cp.async.bulk".
#pragma once

#include "kernels/common/device/phases.h"

#if defined(ATLAS_HAS_BULK_COPY)

namespace atlas::device {

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
