// Kernels of sampling: kernels/common/gpu/sampling.h built for strix-hip.
#include "kernels/common/gpu/sampling.h"
