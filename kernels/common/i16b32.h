// The input encoding "i16b32": a row of activations in blocks of 32, 16-bit codes and one scale
// each.
//
// Products with integer weight codes read it. Sixteen bits keep a row within 2^-16 of its block's
// largest element, and a block's sum of 32 products with codes of up to 8 bits fits 32-bit
// integers, so a block is exact whatever the instruction set, the order of its additions and the
// row count.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace atlas::kernels {

inline constexpr char kI16B32Name[] = "i16b32";
inline constexpr char kEncodeI16B32[] = "encode_i16b32";  // the kernel
inline constexpr uint32_t kI16B32Elements = 32;
inline constexpr int32_t kI16B32Largest = 32767;
/// Blocks whose largest magnitude is below this (2^-100) are encoded as zeros.
inline constexpr float kI16B32Smallest = 0x1p-100f;

/// One block. Of every four elements the codes stand in the order 0, 2, 1, 3: the two 16-bit halves
/// of a 32-bit word of weights, taken apart by shifts, then meet neighbours.
struct I16B32Block {
  float scale;
  float sum;             // scale * float(sum of the codes)
  int32_t half_sums[2];  // sums of the codes of elements 0..15 and 16..31
  int16_t code[kI16B32Elements];
};
static_assert(sizeof(I16B32Block) == 80);

/// Where element `i` of a block stands in `code`.
constexpr uint32_t i16b32_position(uint32_t i) {
  constexpr uint32_t kPlace[4] = {0, 2, 1, 3};
  return (i & ~3u) | kPlace[i & 3];
}

/// Blocks of a row; a last one that is not full goes on with zeros.
constexpr uint64_t i16b32_blocks(uint64_t k) {
  return k / kI16B32Elements + (k % kI16B32Elements != 0 ? 1 : 0);
}
constexpr uint64_t i16b32_row_bytes(uint64_t k) { return i16b32_blocks(k) * sizeof(I16B32Block); }

/// Encodes 32 elements; the definition that every kernel matches bit for bit. With L the largest
/// magnitude: scale = L / 32767, code = x * (32767 / L) rounded to the nearest, ties to even. A
/// block with an infinity or a NaN has scale and sum NaN, so every output of its row becomes NaN.
inline void encode_i16b32_block(const float* x, I16B32Block* block) {
  float largest = 0.0f;
  bool finite = true;
  for (uint32_t i = 0; i < kI16B32Elements; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::fmax(largest, std::fabs(x[i]));
  }
  std::memset(block, 0, sizeof(*block));
  if (!finite) {
    block->scale = block->sum = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  if (largest < kI16B32Smallest) return;
  const float inverse = static_cast<float>(kI16B32Largest) / largest;
  for (uint32_t i = 0; i < kI16B32Elements; ++i) {
    const auto code = static_cast<int32_t>(std::nearbyint(x[i] * inverse));
    block->code[i16b32_position(i)] = static_cast<int16_t>(code);
    block->half_sums[i / 16] += code;
  }
  block->scale = largest / static_cast<float>(kI16B32Largest);
  block->sum = block->scale * static_cast<float>(block->half_sums[0] + block->half_sums[1]);
}

}  // namespace atlas::kernels
