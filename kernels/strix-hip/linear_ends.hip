// Products that end in an operation of the core: kernels/common/gpu/product_ends.h built for
// strix-hip.
#include "kernels/common/gpu/product_ends.h"
