// Operations that are one instruction where compilers make two, or one of another unit of the
// processor.
#pragma once

#include "kernels/common/device/bits.h"

namespace atlas::device {

/// (a & mask) ^ flip.
ATLAS_DEVICE uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t flip) {
#if defined(ATLAS_FORM_CUDA)
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(flip));
  return d;
#else
  return (a & mask) ^ flip;
#endif
}

/// The sum of a's halves as f16, and in the high half that of b's, each rounded once.
ATLAS_DEVICE uint32_t f16_add_halves(uint32_t a, uint32_t b) {
#if defined(ATLAS_FORM_CUDA)
  // Additions take either half of a register: one permutation instead of two.
  uint32_t sums;
  asm("{.reg .b16 a0, a1, b0, b1;\n"
      "mov.b32 {a0, a1}, %1;\nmov.b32 {b0, b1}, %2;\n"
      "add.rn.f16 a0, a0, a1;\nadd.rn.f16 b0, b0, b1;\n"
      "mov.b32 %0, {a0, b0};}"
      : "=r"(sums)
      : "r"(a), "r"(b));
  return sums;
#else
  return f16_add(low_halves(a, b), high_halves(a, b));
#endif
}

}  // namespace atlas::device
