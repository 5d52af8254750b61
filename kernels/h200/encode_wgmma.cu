// The input encoding of products by wgmma: kernels/common/gpu/encode_wgmma.h built for h200.
#include "kernels/common/gpu/encode_wgmma.h"
