// Log-probabilities: kernels/common/gpu/score.h built for strix-hip.
#include "kernels/common/gpu/score.h"
