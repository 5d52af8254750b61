// The resident layout of bf16, f16 and float32 weights on GPUs, and how a checkpoint's rows become
// it: units of 32 elements, every number with its bits (gpu_weights.h). Behind the units of a group
// stands a counter for products whose k is divided over blocks, zero whenever none runs.
#pragma once

#include "kernels/common/gpu_weights.h"
#include "kernels/common/packed_float.h"

namespace atlas::kernels {

inline constexpr uint32_t kFloatUnit = kBlockElements;
constexpr uint32_t gpu_float_unit_bytes(FloatLayout layout) {
  return kTileOutputs * kFloatUnit * float_bytes(layout);
}
/// The counter's bytes: memory's own piece, which no load of weights touches.
inline constexpr uint32_t kGpuFloatTail = 64;
constexpr uint64_t gpu_float_group_bytes(FloatLayout layout, uint64_t k) {
  return whole_units(k, kFloatUnit) * gpu_float_unit_bytes(layout) + kGpuFloatTail;
}

/// gpu_products.h's many_tiles.
constexpr bool gpu_float_wide(FloatLayout layout) { return layout != FloatLayout::kBF16; }

/// Sixteen rows of a checkpoint (null: zeros) into one group.
inline void pack_gpu_floats(MatrixFamily family, FloatLayout layout, const uint8_t* const* rows,
                            uint64_t k, uint8_t* out) {
  const uint32_t size = float_bytes(layout), word_bytes = kWordElements * size;
  if (rows[kTileOutputs - 1] == nullptr || k % kFloatUnit != 0) {
    std::memset(out, 0, gpu_float_group_bytes(layout, k));
  }
  std::memset(out + gpu_float_group_bytes(layout, k) - kGpuFloatTail, 0, kGpuFloatTail);
  for (uint64_t begin = 0; begin < k; begin += kFloatUnit, out += gpu_float_unit_bytes(layout)) {
    for (uint32_t strand = 0; strand < strands(family); ++strand) {
      for (uint32_t word = 0; word < block_words(family); ++word) {
        // Four neighbours move together: 8 or 16 bytes.
        for (uint32_t e = 0; e < kWordElements; e += 4) {
          const device::Element at = word_element(family, strand, word, e);
          if (rows[at.row] == nullptr || begin + at.k >= k) continue;
          const uint64_t left = k - begin - at.k;
          std::memcpy(out + strand_offset(family, strand, word * word_bytes + e * size),
                      rows[at.row] + (begin + at.k) * size, (left < 4 ? left : 4) * size);
        }
      }
    }
  }
}

template <FloatLayout kLayout>
uint64_t gpu_float_group_bytes_of(uint64_t k) {
  return gpu_float_group_bytes(kLayout, k);
}
template <MatrixFamily kFamily, FloatLayout kLayout>
void pack_gpu_floats_of(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_gpu_floats(kFamily, kLayout, rows, k, out);
}

}  // namespace atlas::kernels
