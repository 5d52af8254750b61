// The test pack built for h200 and gb10.
#include "tests/support/gpu_test_pack/test_pack.h"
