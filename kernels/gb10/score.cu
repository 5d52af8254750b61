// Log-probabilities: kernels/common/gpu/score.h built for gb10.
#include "kernels/common/gpu/score.h"
