// Kernels of the hashed n-gram embedding: kernels/common/gpu/ngram.h built for h200.
#include "kernels/common/gpu/ngram.h"
