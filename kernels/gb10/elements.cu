// Kernels of single elements: kernels/common/gpu/elements.h built for gb10.
#include "kernels/common/gpu/elements.h"
