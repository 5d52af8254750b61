// Kernels of the hashed n-gram embedding: kernels/common/gpu/ngram.h built for strix-hip.
#include "kernels/common/gpu/ngram.h"
