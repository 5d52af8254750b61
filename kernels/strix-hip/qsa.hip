// Sparse attention: kernels/common/gpu/qsa.h built for strix-hip.
#include "kernels/common/gpu/qsa.h"
