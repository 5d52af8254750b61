// Kernels over rows of activations: kernels/common/gpu/rows.h built for strix-hip.
#include "kernels/common/gpu/rows.h"
