// Dense attention: kernels/common/gpu/gqa.h built for h200.
#include "kernels/common/gpu/gqa.h"
