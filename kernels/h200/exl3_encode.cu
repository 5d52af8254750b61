// Encoding of rows for EXL3: kernels/common/gpu/exl3_encode.h built for h200, and its form for
// wgmma.
#include "kernels/common/gpu/exl3_encode.h"
#include "kernels/common/gpu/exl3_encode_wgmma.h"
