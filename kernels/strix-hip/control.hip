// Kernels of the control block: kernels/common/gpu/control.h built for strix-hip.
#include "kernels/common/gpu/control.h"
