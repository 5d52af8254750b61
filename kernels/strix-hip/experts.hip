// Kernels of a mixture of experts: kernels/common/gpu/experts.h built for strix-hip.
#include "kernels/common/gpu/experts.h"
