// The sum of a word's bytes by another unit of a multiprocessor than bits.h's.
#pragma once

#include "kernels/common/device/bits.h"

namespace atlas::device {

/// sum_of_bytes(bytes, 0). On NVIDIA's GPUs dp4a takes the unit of multiplications, this that of
/// shifts and logic, each two cycles for a warp: where both are called in turn, neither waits.
ATLAS_DEVICE uint32_t sum_of_bytes_beside(uint32_t bytes) {
#if defined(ATLAS_FORM_CUDA)
  return __vsadu4(bytes, 0);
#else
  return sum_of_bytes(bytes, 0);
#endif
}

}  // namespace atlas::device
