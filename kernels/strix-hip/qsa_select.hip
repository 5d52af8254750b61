// Choice of blocks: kernels/common/gpu/qsa_select.h built for strix-hip.
#include "kernels/common/gpu/qsa_select.h"
