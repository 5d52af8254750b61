// The input encoding of products: kernels/common/gpu/encode_bf16.h built for strix-hip.
#include "kernels/common/gpu/encode_bf16.h"
