// Fragments: the registers of one lane that a matrix instruction takes and gives, and which element
// of the matrix each holds. Plain C++, for kernels, for the host that packs weights, and for the
// emulator, which knows the instructions by these functions alone.
//
// D[m, n] = A[m, k] B[k, n] + C[m, n]. Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16, k32,
// k64" (lane = 4 g + t there); AMD, "How to accelerate AI applications on RDNA 3 using WMMA".
#pragma once

#include <stdint.h>

namespace atlas::device {

/// An element of a matrix. `k` counts along the sum, `row` along m (of A, D) or n (of B).
struct Element {
  uint32_t row;
  uint32_t k;
};
/// An element of D.
struct Cell {
  uint32_t row;
  uint32_t column;
};

/// Lanes that execute a matrix instruction together.
inline constexpr uint32_t kMatrixLanes = 32;

// ---- mma.sync m16n8k(8 * elements a register): 16 x 8 results ----

/// A, m16: 4 words of 2 (f16, bf16), 4 (int8, e4m3) or 8 (e2m1) elements, ascending k from bit 0.
struct MmaA {
  uint32_t r[4];
};
/// B, n8: 2 words.
struct MmaB {
  uint32_t r[2];
};
struct MmaSums {
  float r[4];
};
struct MmaIntSums {
  int32_t r[4];
};

/// Element `e` of word `r` of lane `lane`; `per_word` elements have a word.
constexpr Element mma_a_element(uint32_t lane, uint32_t r, uint32_t e, uint32_t per_word) {
  return {lane / 4 + 8 * (r % 2), per_word * (lane % 4) + e + 4 * per_word * (r / 2)};
}
constexpr Element mma_b_element(uint32_t lane, uint32_t r, uint32_t e, uint32_t per_word) {
  return {lane / 4, per_word * (lane % 4) + e + 4 * per_word * r};
}
constexpr Cell mma_cell(uint32_t lane, uint32_t r) {
  return {lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2};
}
/// Block-scaled FP4: a word of four ue4m3 scales, byte j for k = 16 j ... 16 j + 15. The lane that
/// brings the word of row `row` of A, and of column `column` of B; other lanes' words do not count.
constexpr uint32_t mma_scale_a_lane(uint32_t row) { return 4 * (row % 8) + row / 8; }
constexpr uint32_t mma_scale_b_lane(uint32_t column) { return 4 * column; }

// ---- wgmma m64nNk16: 64 x N results of four warps ----

/// Each warp has 16 rows, A as mma.sync m16n8k16 has it, and N / 8 times D as that has it.
inline constexpr uint32_t kWgmmaWarps = 4;
/// Cell `r` of lane `lane` of warp `warp` of the four.
constexpr Cell wgmma_cell(uint32_t warp, uint32_t lane, uint32_t r) {
  const Cell cell = mma_cell(lane, r % 4);
  return {16 * warp + cell.row, 8 * (r / 4) + cell.column};
}
/// B in shared memory: rows of 128 bytes, eight of them together in 1,024, whose 16-byte pieces
/// change places: where byte `offset` of a matrix that begins at a multiple of 1,024 stands.
inline constexpr uint32_t kWgmmaRowBytes = 128;
constexpr uint32_t wgmma_swizzled(uint32_t offset) { return offset ^ (offset >> 3 & 0x70); }

// ---- WMMA 16x16x16 of gfx11, wave32: 16 x 16 results ----

/// A row of A or a column of B: 16 halves, ascending k. Lanes 16..31 hold the same as lanes 0..15.
struct WmmaHalves {
  uint32_t r[8];
};
/// The same of bytes.
struct WmmaBytes {
  uint32_t r[4];
};
struct WmmaSums {
  float r[8];
};
struct WmmaIntSums {
  int32_t r[8];
};

constexpr Element wmma_element(uint32_t lane, uint32_t r, uint32_t e, uint32_t per_word) {
  return {lane % 16, per_word * r + e};
}
constexpr Cell wmma_cell(uint32_t lane, uint32_t r) { return {2 * r + lane / 16, lane % 16}; }

}  // namespace atlas::device
