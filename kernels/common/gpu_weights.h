// How packed weights lie in memory for matrix instructions: which element of W each lane holds, for
// host code that packs and for kernels that decode. Plain C++.
//
// Rows of W come in groups of 16 outputs, and a group in units of 32 or 64 elements along k, in
// ascending order; a last unit that is not full goes on with zeros. Within a unit stand blocks of
// 32 elements. What one lane needs of 16 x 32 elements are "words" of 8 elements of one row:
//   for mma.sync (32 strands, lane = 4 g + t): word 0 of row g, word 1 of row g + 8, each with the
//     elements 4 t ... 4 t + 3 and 16 + 4 t ... 16 + 4 t + 3 of the block
//   for WMMA (16 strands, which both halves of a wave read): words 0 to 3 of row s, each with 8
//     consecutive elements
// So the first and the second half of the words feed the steps k = 0..15 and k = 16..31 of a block,
// and rows of activations that are encoded as bf16 (below) need one 16-byte load for a block.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/device/fragments.h"
#include "kernels/common/linear.h"

namespace atlas::kernels {

/// The two families of matrix instructions; layouts and bits differ between them.
enum class MatrixFamily : uint32_t { kMma, kWmma };

inline constexpr uint32_t kTileOutputs = 16;    // of a group, a row of matrix instructions
inline constexpr uint32_t kBlockElements = 32;  // along k
inline constexpr uint32_t kWordElements = 8;

/// Lanes that hold different elements.
constexpr uint32_t strands(MatrixFamily family) { return family == MatrixFamily::kMma ? 32 : 16; }
/// Words that a strand has of a block.
constexpr uint32_t block_words(MatrixFamily family) { return family == MatrixFamily::kMma ? 2 : 4; }
/// Element `e` (0..7) of a strand's word: its row in the group, and its k in the block. Elements 0
/// to 3 are neighbours along k, and so are 4 to 7.
constexpr device::Element word_element(MatrixFamily family, uint32_t strand, uint32_t word,
                                       uint32_t e) {
  if (family == MatrixFamily::kWmma) return {strand, kWordElements * word + e};
  return {strand / 4 + 8 * word, 4 * (strand % 4) + e % 4 + 16 * (e / 4)};
}
/// Rows of a group whose results a lane holds: row `i` of them.
constexpr uint32_t lane_rows(MatrixFamily family) { return family == MatrixFamily::kMma ? 2 : 8; }
constexpr uint32_t lane_row(MatrixFamily family, uint32_t lane, uint32_t i) {
  return family == MatrixFamily::kMma ? lane / 4 + 8 * i : 2 * i + lane / 16;
}
/// Numbers of rows that scale results stand in this order, a lane's side by side: at which place.
constexpr uint32_t row_place(MatrixFamily family, uint32_t row) {
  return family == MatrixFamily::kMma ? row % 8 * 2 + row / 8 : row % 2 * 8 + row / 2;
}

/// A strand's bytes of a unit are cut into pieces of 16, so that a lane loads one at a time and
/// neighbours load neighbours: where byte `at` of strand `strand` stands.
constexpr uint32_t strand_offset(MatrixFamily family, uint32_t strand, uint32_t at) {
  return (at / 16 * strands(family) + strand) * 16 + at % 16;
}

constexpr uint64_t whole_units(uint64_t size, uint32_t unit) {
  return size / unit + (size % unit != 0 ? 1 : 0);
}

/// Input encoding "bf16_b32" of a row of activations: k rounded up to a multiple of 128, elements
/// past the row's end are 0. First bf16 numbers, in blocks of 32 elements: for t = 0..3 the
/// elements 4 t ... 4 t + 3, then 16 + 4 t ... 16 + 4 t + 3. Then for each block a float32, the sum
/// of its bf16 numbers: of each t its eight ascending, then (t0 + t1) + (t2 + t3).
inline constexpr char kBf16Encoding[] = "bf16_b32";
inline constexpr char kEncodeBf16[] = "encode_bf16_b32";  // the kernel
inline constexpr uint32_t kEncodedPad = 128;
constexpr uint64_t encoded_elements(uint64_t k) {
  return whole_units(k, kEncodedPad) * kEncodedPad;
}
/// Where the sums begin.
constexpr uint64_t bf16_sums_offset(uint64_t k) { return 2 * encoded_elements(k); }
constexpr uint64_t bf16_row_bytes(uint64_t k) {
  return bf16_sums_offset(k) + encoded_elements(k) / kBlockElements * sizeof(float);
}

/// Products by wgmma (gpu_wgmma.h) take so much of k at a time: a row of it is one row of the
/// instruction's matrix in shared memory.
inline constexpr uint32_t kWgmmaStage = 64;

/// Contract of products with weights that are sums of at most three bf16 numbers, without scales
/// within a row.
inline constexpr char kBf16Contract[] = "bf16_k16_s256";
inline constexpr uint32_t kBf16Run = 256;

}  // namespace atlas::kernels
