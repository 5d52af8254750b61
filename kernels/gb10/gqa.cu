// Dense attention: kernels/common/gpu/gqa.h built for gb10.
#include "kernels/common/gpu/gqa.h"
