// The test pack built for strix-hip.
#include "tests/support/gpu_test_pack/test_pack.h"
