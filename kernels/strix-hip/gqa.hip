// Dense attention: kernels/common/gpu/gqa.h built for strix-hip.
#include "kernels/common/gpu/gqa.h"
