// Products with bf16 weights: kernels/common/gpu/linear_bf16.h built for strix-hip.
#include "kernels/common/gpu/linear_bf16.h"
