// Kernels of a mixture of experts: kernels/common/gpu/experts.h built for gb10.
#include "kernels/common/gpu/experts.h"
