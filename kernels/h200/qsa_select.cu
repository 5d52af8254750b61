// Choice of blocks: kernels/common/gpu/qsa_select.h built for h200.
#include "kernels/common/gpu/qsa_select.h"
