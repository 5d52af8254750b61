// Two operations at once: kernels/common/gpu/fused.h built for gb10.
#include "kernels/common/gpu/fused.h"
