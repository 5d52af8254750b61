// The input encoding of products: kernels/common/gpu/encode_bf16.h built for h200.
#include "kernels/common/gpu/encode_bf16.h"
