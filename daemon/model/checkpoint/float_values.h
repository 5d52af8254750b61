// Small tensors of a checkpoint as numbers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::model {

/// The values of a tensor of type f32, f16 or bf16; empty for another type.
std::vector<float> float_values(AtlasDType dtype, std::span<const std::byte> bytes);

}  // namespace atlas::model
