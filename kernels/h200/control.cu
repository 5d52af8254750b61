// Kernels of the control block: kernels/common/gpu/control.h built for h200.
#include "kernels/common/gpu/control.h"
