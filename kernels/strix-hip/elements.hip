// Kernels of single elements: kernels/common/gpu/elements.h built for strix-hip.
#include "kernels/common/gpu/elements.h"
