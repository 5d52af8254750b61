// Kernels of sampling: kernels/common/gpu/sampling.h built for gb10.
#include "kernels/common/gpu/sampling.h"
