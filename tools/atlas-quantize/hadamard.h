// The 128-point Hadamard transform of EXL3: natural order, scaled so that it is its own inverse.
#pragma once

#include <cstdint>
#include <span>

#include "tools/atlas-quantize/tensors.h"

namespace atlas::quantize {

inline constexpr uint64_t kHadamard = 128;

/// Each aligned run of 128 values of `values`, whose length 128 divides.
void hadamard_runs(std::span<float> values);
/// Along the rows' elements, and along the columns' (which mixes rows of blocks of 128).
void hadamard_rows(Matrix& m, uint32_t threads);
void hadamard_columns(Matrix& m, uint32_t threads);

}  // namespace atlas::quantize
