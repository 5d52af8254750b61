// Kernels of the hashed n-gram embedding: kernels/common/gpu/ngram.h built for gb10.
#include "kernels/common/gpu/ngram.h"
