// Gated DeltaNet of few rows: kernels/common/gpu/gdn_step.h built for h200.
#include "kernels/common/gpu/gdn_step.h"
