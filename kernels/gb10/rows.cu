// Kernels over rows of activations: kernels/common/gpu/rows.h built for gb10.
#include "kernels/common/gpu/rows.h"
