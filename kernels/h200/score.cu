// Log-probabilities: kernels/common/gpu/score.h built for h200.
#include "kernels/common/gpu/score.h"
