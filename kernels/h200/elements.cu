// Kernels of single elements: kernels/common/gpu/elements.h built for h200.
#include "kernels/common/gpu/elements.h"
