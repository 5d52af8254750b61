// Recurrence of Gated DeltaNet: kernels/common/gpu/gdn_attend.h built for strix-hip.
#include "kernels/common/gpu/gdn_attend.h"
