// Asking the second-level cache for what will be read later. Nothing depends on it but time.
#pragma once

#include "kernels/common/device/form.h"

namespace atlas::device {

/// Asks the second-level cache for the line that holds `at`, in global memory, and waits for
/// nothing.
ATLAS_DEVICE void prefetch(const void* at) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
  static_cast<void>(at);
#endif
}

}  // namespace atlas::device
