// Arithmetic on pairs of bf16 in a word, each rounded to nearest even; subnormal numbers count.
// Kernels that decode weights use results that are exact.
#pragma once

#include "kernels/common/device/convert.h"

namespace atlas::device {

ATLAS_DEVICE uint32_t bf16_pair_multiply(uint32_t a, uint32_t b) {
#if defined(ATLAS_FORM_CUDA)
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
#else
  return bf16_pair(bf16_low(a) * bf16_low(b), bf16_high(a) * bf16_high(b));
#endif
}

ATLAS_DEVICE uint32_t bf16_pair_add(uint32_t a, uint32_t b) {
#if defined(ATLAS_FORM_CUDA)
  uint32_t sum;
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
#else
  return bf16_pair(bf16_low(a) + bf16_low(b), bf16_high(a) + bf16_high(b));
#endif
}

}  // namespace atlas::device
