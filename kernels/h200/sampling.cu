// Kernels of sampling: kernels/common/gpu/sampling.h built for h200.
#include "kernels/common/gpu/sampling.h"
