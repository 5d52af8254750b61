// Kernels over rows of activations: kernels/common/gpu/rows.h built for h200.
#include "kernels/common/gpu/rows.h"
