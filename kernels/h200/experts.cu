// Kernels of a mixture of experts: kernels/common/gpu/experts.h built for h200.
#include "kernels/common/gpu/experts.h"
