// The device layer: all that a GPU kernel may see of its platform. Written once, built by nvcc, by
// clang for HIP, and for the emulator by any host compiler. docs/kernels.md says how to use it.
#pragma once

#include "kernels/common/device/atomic.h"
#include "kernels/common/device/bits.h"
#include "kernels/common/device/convert.h"
#include "kernels/common/device/form.h"
#include "kernels/common/device/fragments.h"
#include "kernels/common/device/index_sync.h"
#include "kernels/common/device/math.h"
#include "kernels/common/device/matrix.h"
#include "kernels/common/device/memory.h"
#include "kernels/common/device/pairs.h"
#include "kernels/common/device/warp.h"
