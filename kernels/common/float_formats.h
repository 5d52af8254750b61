// The formats "f32", "f16" and "bf16" as a plugin's table has them; two plugins offer them.
#pragma once

#include <cstdint>

#include "kernels/common/packed_float.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::kernels {

template <FloatLayout kLayout>
uint64_t float_group_bytes_of(uint64_t k) {
  return float_group_bytes(kLayout, k);
}
template <FloatLayout kLayout>
void pack_floats_of(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_floats(kLayout, rows, k, out);
}

/// Number `index` of an array of float32, float16 or bfloat16, anywhere in memory.
inline float stored_float(AtlasDType dtype, const void* data, uint64_t index) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (dtype == ATLAS_F32) return float_from_bits(load_u32(bytes + 4 * index));
  return dtype == ATLAS_F16 ? load_f16(bytes + 2 * index)
                            : bf16_to_f32(load_u16(bytes + 2 * index));
}

/// One line of the table; `Format` is plugins/sdk/packed_linear.h's PackedFormat.
#define ATLAS_FLOAT_FORMAT(Format, name, NAME)                                            \
  Format {                                                                                \
#name, ::atlas::kernels::kF32Contract, #name " rows16 v1", "", "linear_" #name,       \
        "grouped_" #name, "gather_" #name, nullptr, ATLAS_##NAME, 1,                      \
        ::atlas::kernels::float_bytes(::atlas::kernels::FloatLayout::k##NAME),            \
        ::atlas::kernels::float_group_bytes_of < ::atlas::kernels::FloatLayout::k##NAME>, \
        ::atlas::kernels::pack_floats_of < ::atlas::kernels::FloatLayout::k##NAME>        \
  }

}  // namespace atlas::kernels
