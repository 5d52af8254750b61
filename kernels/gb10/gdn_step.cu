// Gated DeltaNet of few rows: kernels/common/gpu/gdn_step.h built for gb10.
#include "kernels/common/gpu/gdn_step.h"
