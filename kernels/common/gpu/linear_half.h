// Products in f16 (gpu_half.h), contract "f16_k16_s256".
#pragma once

#include "kernels/common/gpu/linear_float.h"
#include "kernels/common/gpu_half.h"

namespace atlas::kernels {

/// Words are those of bf16, with other numbers in them; what differs is that rows have a scale.
struct HalfFormat : FloatFormat<FloatLayout::kBF16> {
  using Base = FloatFormat<FloatLayout::kBF16>;
  static constexpr bool kHeadScales = true, kF16 = true;

  ATLAS_DEVICE static uint32_t head_bytes(uint32_t) { return kHalfHead; }
  ATLAS_DEVICE static uint64_t group_bytes(uint32_t k) { return kHalfHead + Base::group_bytes(k); }
  ATLAS_DEVICE static uint64_t counter_offset(uint32_t k) {
    return kHalfHead + Base::counter_offset(k);
  }
  ATLAS_DEVICE static Place place(const uint8_t* group, uint32_t unit, uint32_t k) {
    return Base::place(group + kHalfHead, unit, k);
  }
  ATLAS_DEVICE static Unit load(const uint8_t* group, uint32_t unit, uint32_t k) {
    return Base::load(group + kHalfHead, unit, k);
  }
  ATLAS_DEVICE static float finish(const uint8_t* group, uint32_t output, uint32_t, float total) {
    return total * device::load_as<float>(group + output * sizeof(float));
  }
  ATLAS_DEVICE static float element(const uint8_t* group, uint32_t unit, uint32_t, uint32_t strand,
                                    uint32_t word, uint32_t e, uint32_t) {
    const uint8_t* at = group + kHalfHead + uint64_t{unit} * kUnitBytes +
                        strand_offset(kFamily, strand, 2 * (word * kWordElements + e));
    return device::f16_value(device::load_as<uint16_t>(at)) *
           device::load_as<float>(group +
                                  word_element(kFamily, strand, word, e).row * sizeof(float));
  }
};

}  // namespace atlas::kernels
