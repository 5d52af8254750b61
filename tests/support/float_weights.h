// Random weights that are floating-point numbers: as in a checkpoint, decoded, and packed.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/common/packed_float.h"
#include "tests/support/cpu_pack.h"

namespace atlas::test {

struct FloatWeights {
  FloatWeights(kernels::FloatLayout float_layout, uint32_t rows, uint32_t columns,
               uint32_t seed = 3)
      : layout(float_layout),
        n(rows),
        k(columns),
        bytes(size_t{n} * k * kernels::float_bytes(layout)),
        values(size_t{n} * k),
        packed((n + 15) / 16 * kernels::float_group_bytes(layout, k)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    const uint32_t size = kernels::float_bytes(layout);
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t bits;
      const float value = normal(random);
      std::memcpy(&bits, &value, sizeof(bits));
      if (layout == kernels::FloatLayout::kBF16) bits >>= 16;
      if (layout == kernels::FloatLayout::kF16) {  // any sign and mantissa, exponent near 2^-5
        bits = (random() & 0x83ff) | (8 + random() % 5) << 10;
      }
      std::memcpy(bytes.data() + i * size, &bits, size);
      values[i] = layout == kernels::FloatLayout::kF32 ? value
                  : layout == kernels::FloatLayout::kF16
                      ? kernels::f16_to_f32(static_cast<uint16_t>(bits))
                      : kernels::bf16_to_f32(static_cast<uint16_t>(bits));
    }
    for (uint32_t g = 0; g < (n + 15) / 16; ++g) {
      const uint8_t* group_rows[kernels::kRowGroup] = {};
      for (uint32_t r = 0; r < kernels::kRowGroup && g * 16 + r < n; ++r) {
        group_rows[r] = bytes.data() + size_t{g * 16 + r} * k * size;
      }
      kernels::pack_floats(layout, group_rows, k,
                           packed.as<uint8_t>() + g * kernels::float_group_bytes(layout, k));
    }
  }
  float at(uint32_t row, uint32_t i) const { return values[size_t{row} * k + i]; }

  kernels::FloatLayout layout;
  uint32_t n, k;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
  Aligned packed;
};

inline const char* name_of(kernels::FloatLayout layout) {
  return layout == kernels::FloatLayout::kF32   ? "f32"
         : layout == kernels::FloatLayout::kF16 ? "f16"
                                                : "bf16";
}

}  // namespace atlas::test
