// Two operations at once: kernels/common/gpu/fused.h built for strix-hip.
#include "kernels/common/gpu/fused.h"
