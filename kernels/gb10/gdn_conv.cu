// Convolution of Gated DeltaNet and what its slots keep: kernels/common/gpu/gdn_conv.h built for
// gb10.
#include "kernels/common/gpu/gdn_conv.h"
