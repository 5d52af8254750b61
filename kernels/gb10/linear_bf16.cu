// Products with bf16 weights: kernels/common/gpu/linear_bf16.h built for gb10.
#include "kernels/common/gpu/linear_bf16.h"
