// Gated DeltaNet of few rows: kernels/common/gpu/gdn_step.h built for strix-hip.
#include "kernels/common/gpu/gdn_step.h"
