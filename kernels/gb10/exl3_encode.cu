// Encoding of rows for EXL3: kernels/common/gpu/exl3_encode.h built for gb10.
#include "kernels/common/gpu/exl3_encode.h"
