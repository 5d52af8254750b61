// Sparse attention: kernels/common/gpu/qsa.h built for h200.
#include "kernels/common/gpu/qsa.h"
