// Every function of the device layer, compiled for this platform.
#include "tests/conformance/gpu/layer.h"
