// Recurrence of Gated DeltaNet: kernels/common/gpu/gdn_attend.h built for gb10.
#include "kernels/common/gpu/gdn_attend.h"
