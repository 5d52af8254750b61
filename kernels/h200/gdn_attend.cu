// Recurrence of Gated DeltaNet: kernels/common/gpu/gdn_attend.h built for h200.
#include "kernels/common/gpu/gdn_attend.h"
