// Plain quantizers into GGUF's block types: round to nearest, no search. For test files only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::testing {

/// Appends `values` as `dtype` to `out`. Plain types F32, F16, BF16 and the block types of the ABI;
/// for blocks the count of values must be a multiple of the block.
void append_as(AtlasDType dtype, const std::vector<float>& values, std::string* out);

uint16_t float_to_half(float value);
float half_to_float(uint16_t half);
uint16_t float_to_bfloat(float value);

}  // namespace atlas::testing
