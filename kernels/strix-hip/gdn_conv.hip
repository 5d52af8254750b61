// Convolution of Gated DeltaNet and what its slots keep: kernels/common/gpu/gdn_conv.h built for
// strix-hip.
#include "kernels/common/gpu/gdn_conv.h"
