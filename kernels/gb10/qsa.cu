// Sparse attention: kernels/common/gpu/qsa.h built for gb10.
#include "kernels/common/gpu/qsa.h"
