// Choice of blocks: kernels/common/gpu/qsa_select.h built for gb10.
#include "kernels/common/gpu/qsa_select.h"
