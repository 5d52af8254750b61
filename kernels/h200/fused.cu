// Two operations at once: kernels/common/gpu/fused.h built for h200.
#include "kernels/common/gpu/fused.h"
