// Kernels of the control block: kernels/common/gpu/control.h built for gb10.
#include "kernels/common/gpu/control.h"
