// Encoding of rows for EXL3: kernels/common/gpu/exl3_encode.h built for strix-hip.
#include "kernels/common/gpu/exl3_encode.h"
