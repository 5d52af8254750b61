// Products that end in an operation of the core: kernels/common/gpu/product_ends.h built for gb10.
#include "kernels/common/gpu/product_ends.h"
