// EXL3, the trellis format of ExLlamaV3: what its bits mean, where the CPU pack keeps them, the
// parameters of its kernels, and the contract of its products. Formulas: the format's own
// definition in exllamav3 (codebooks, tile order, bit order, Hadamard blocks).
//
// A matrix of k inputs and n outputs is
//   W = diag(suh) H What H diag(svh),  H = blocks of 128 Hadamard / sqrt(128),
// so that a product is y = svh * H((H(x * suh)) What). Sizes that are no multiples of 128 are
// padded up to one: x goes on with zeros, and the outputs behind the n-th are left out, whatever
// the checkpoint has there. What stands in tiles of 16 inputs by 16 outputs; a tile's 256 weights
// are windows of 16 bits, the states, into a ring of 256 K bits, and a state's codebook value is a
// float16.
//
// Resident layout, of padded sizes: head = suh f16[k], svh f16[n], then zeros up to a multiple of
// 64 bytes; then groups of 128 outputs, each 4 strips of 32 outputs. A strip has the tiles of two
// neighbouring tile columns in ascending k. A tile's ring is 8 segments of 32 K bits, segment c
// holding all weights of columns c and c + 8: lane c of a vector of sixteen 32-bit words for the
// left tile, lane 8 + c for the right one, a word of each segment after the other. With an odd
// number of half bits, two tiles of ascending k share one vector: the first tile's last 16 bits lie
// in the high halves of vector (units - 1) / 2, the second's in the low ones. The bits are the
// checkpoint's, in another order.
//
// Contract "exl3_f32" (float32 all through, weights exactly as the codebooks decode them):
//   1. x * suh rounded; butterflies of strides 1, 2, 4, ... 64 (a + b, a - b); times kExl3Norm.
//   2. Per output and segment of 128 inputs a sum from zero by fma, tiles ascending, in a tile in
//      the order of exl3_input(s); then total = total + sum, segments ascending, from 0.
//   3. Butterflies over 128 outputs of strides 1, 2, 4, 16, 8, 32, 64; times kExl3Norm; times svh.
//      With ADD, y + that.
// The same bits for every instruction set, row count, and for experts.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/codecs.h"
#include "kernels/common/params.h"

namespace atlas::kernels {

inline constexpr char kExl3Contract[] = "exl3_f32";
inline constexpr uint32_t kExl3Block = 128;          // of the Hadamard transform
inline constexpr uint32_t kExl3Tile = 16;            // inputs, and outputs
inline constexpr uint32_t kExl3Strip = 32;           // outputs
inline constexpr float kExl3Norm = 0.088388347648f;  // 1 / sqrt(128)

enum class Exl3Codebook : uint32_t { k3Inst = 0, kMcg = 1, kMul1 = 2 };
inline constexpr uint32_t kExl3Codebooks = 3;
/// What checkpoints store in a codebook's marker tensor.
inline constexpr uint32_t kExl3Mcg = 0xcbac1fed;
inline constexpr uint32_t kExl3Mul1 = 0x83dcd12d;

/// Bits a weight are counted in halves, `units`: 16-bit units of one segment of a tile. 2 to 16,
/// the odd ones 3, 5 and 7 (1.5, 2.5, 3.5 bits) in codebook MUL1 only.
constexpr bool exl3_has(Exl3Codebook codebook, uint32_t units) {
  if (units % 2 == 0) return units >= 2 && units <= 16;
  return codebook == Exl3Codebook::kMul1 && units >= 3 && units <= 7;
}

/// The ring bit after the window of weight `t`: an even weight takes the smaller half of an odd
/// number of half bits.
constexpr uint32_t exl3_end(uint32_t units, uint32_t t) {
  return (t + 1) / 2 * units + ((t + 1) % 2) * (units / 2);
}

/// Where weight `t` (0..255) of a tile stands.
constexpr uint32_t exl3_row(uint32_t t) { return 2 * (t >> 3 & 3) + (t & 1) + 8 * (t >> 1 & 1); }
constexpr uint32_t exl3_column(uint32_t t) { return (t >> 5) + 8 * (t >> 2 & 1); }

/// The input (0..15) of a tile that is summed as number `s`.
constexpr uint32_t exl3_input(uint32_t s) { return 2 * (s >> 2) + (s & 1) + 8 * (s >> 1 & 1); }

/// The output (0..127) of a block whose sum stands at `i` of a row of sums: lanes come before
/// halves of tiles.
constexpr uint32_t exl3_output(uint32_t i) { return (i & ~24u) | (i >> 1 & 8) | (i << 1 & 16); }

/// State of weight `t` of a tile as the checkpoint stores it: `units` * 8 bytes ... 4 words for
/// each unit, bits from the highest of word 0 on.
ATLAS_HOST_DEVICE inline uint32_t exl3_state(const uint32_t* words, uint32_t units, uint32_t t) {
  const uint32_t bits = 128 * units;
  const uint32_t begin = (exl3_end(units, t) + bits - 16) % bits;
  const uint32_t next = words[(begin / 32 + 1) % (bits / 32)];
  const uint64_t both = static_cast<uint64_t>(words[begin / 32]) << 32 | next;
  return static_cast<uint32_t>(both >> (48 - begin % 32)) & 0xffffu;
}

/// A float32 as the nearest float16, ties to even, for magnitudes of 2^-14 up to 2^15 and 0.
ATLAS_HOST_DEVICE inline float exl3_round(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  bits += 0xfffu + (bits >> 13 & 1u);
  return float_from_bits(bits & ~0x1fffu);
}

/// A codebook's value of a state: a float16 number, as float32.
ATLAS_HOST_DEVICE inline float exl3_value(Exl3Codebook codebook, uint32_t state) {
  if (codebook == Exl3Codebook::kMul1) {
    const uint32_t u = state * kExl3Mul1;
    const uint32_t sum = (u & 255u) + (u >> 8 & 255u) + (u >> 16 & 255u) + (u >> 24);
    // (1024 + sum) * f16 0x1eee + f16 0xc931, in units of 2^-18; exact in float32.
    const int32_t exact = 1774 * static_cast<int32_t>(sum) - 905216;
    return exl3_round(static_cast<float>(exact) * 0x1p-18f);
  }
  const uint32_t u =
      codebook == Exl3Codebook::kMcg ? state * kExl3Mcg : state * 89226354u + 64248484u;
  const uint32_t v = (u & 0x8fff8fffu) ^ 0x3b603b60u;
  // Both are multiples of 2^-13 below 2, so the sum is exact.
  return exl3_round(f16_to_f32(static_cast<uint16_t>(v)) +
                    f16_to_f32(static_cast<uint16_t>(v >> 16)));
}

// ---- Layout ----

// These take sizes with or without their padding.

/// The size that a checkpoint and the resident layout have for a matrix's `size`.
constexpr uint64_t exl3_padded(uint64_t size) {
  return (size + kExl3Block - 1) / kExl3Block * kExl3Block;
}
constexpr uint64_t exl3_head_bytes(uint64_t n, uint64_t k) {
  return (2 * (exl3_padded(n) + exl3_padded(k)) + 63) / 64 * 64;
}
constexpr uint64_t exl3_strip_bytes(uint32_t units, uint64_t k) {
  return 2 * units * exl3_padded(k);
}
/// Bytes of a whole weight.
constexpr uint64_t exl3_bytes(uint32_t units, uint64_t n, uint64_t k) {
  return exl3_head_bytes(n, k) + exl3_padded(n) / kExl3Strip * exl3_strip_bytes(units, k);
}

/// Where the resident layout keeps unit `unit` (16 bits) of lane `lane` of the strip's tile row
/// `tile`: bytes from the strip's start.
constexpr uint64_t exl3_unit_offset(uint32_t units, uint64_t tile, uint32_t lane, uint32_t unit) {
  uint64_t vector = tile * units / 2 + unit / 2;
  uint32_t high = 1 - unit % 2;  // the first of two units is the high half of its word
  if (units % 2 != 0) {
    const uint64_t pair = tile / 2 * units;
    const bool last = unit + 1 == units;
    vector = pair + (last ? units / 2 : tile % 2 * (units / 2 + 1) + unit / 2);
    if (last) high = tile % 2 == 0 ? 1 : 0;
  }
  return (vector * 16 + lane) * 4 + 2 * high;
}

// ---- N-gram rows ----

/// Elements of a row of an n-gram table in this format.
inline constexpr uint32_t kExl3RowElements = 160;
constexpr uint64_t exl3_row_bytes(uint32_t bits) { return 2 + 20 * uint64_t{bits}; }

/// One row of an n-gram table, `bits` (1..8) a weight: a float16 scale, then a ring of 160 * bits
/// bits, from the lowest of each 16-bit word on. out = MUL1(state) * scale.
ATLAS_HOST_DEVICE inline void exl3_decode_row(const uint8_t* row, uint32_t bits, float* out) {
  const float scale = load_f16(row);
  const uint8_t* ring = row + 2;
  for (uint32_t i = 0; i < kExl3RowElements; ++i) {
    uint32_t state = 0;
    // Symbols of this element and of those before it, until 16 bits are there.
    for (uint32_t m = 0; m < 16; ++m) {
      const uint32_t element = (i + kExl3RowElements - m / bits) % kExl3RowElements;
      const uint32_t at = element * bits + m % bits;
      state |= static_cast<uint32_t>(ring[at / 8] >> at % 8 & 1) << m;
    }
    out[i] = exl3_value(Exl3Codebook::kMul1, state) * scale;
  }
}

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// exl3_input: y[i] = step 1 of the contract of row source(i) of x, a task for each row and
/// kExl3TransformBlocks blocks; exl3_output: step 3, of sums in the order of exl3_output(), row i
/// into row i. Rows are those of *row_count, or of experts if there are offsets. Of rows that end
/// inside of a block the rest counts as zeros (input), or is not written (output).
ATLAS_PARAMS(Exl3TransformParams,
  const float* x;
  const void* weight;  // of expert 0: its head
  float* y;
  const uint32_t* row_count;  // or null
  const uint32_t* offsets;    // [experts + 1], or null
  const uint32_t* source;     // or null: row i of x
  uint64_t x_stride;  // elements from a row to the next
  uint64_t y_stride;
  uint64_t x_block;  // elements from a block of 128 to the next: 128 where rows are whole
  uint64_t y_block;
  uint64_t expert_bytes;
  uint64_t scale_offset;  // bytes from the weight's start to its scales
  uint32_t width;         // k or n, without padding
  uint32_t experts;
  uint32_t epilogue;  // ATLAS_EPILOGUE_*
  uint32_t reserved;
);

/// exl3_product_<codebook>: step 2. Rows as above; a task for each strip, or `tasks` of experts. Rows
/// of x and of sums are cut into blocks of 128, equal blocks of all rows behind each other: however
/// wide rows are, those that are multiplied together lie close together. Sizes are padded ones.
ATLAS_PARAMS(Exl3ProductParams,
  const float* x;      // [k / 128, rows, 128]
  const void* strips;  // of expert 0
  float* sums;         // [n / 128, rows, 128], in the order of exl3_output()
  const uint32_t* row_count;
  const uint32_t* offsets;
  uint64_t expert_bytes;
  uint32_t n;
  uint32_t k;
  uint32_t units;
  uint32_t experts;
  uint32_t tasks;
  uint32_t rows;  // room for so many
);

/// exl3_gather_<codebook>: y[r,:] = W[id(r),:], output id(r) of the product as a row. One task a row.
/// Sizes are without padding.
ATLAS_PARAMS(Exl3GatherParams,
  const void* weight;
  const void* ids;
  float* y;  // [m, k]
  const uint32_t* row_count;
  uint64_t y_stride;
  uint32_t id_stride;
  uint32_t n;
  uint32_t k;
  uint32_t units;
);

// clang-format on

inline constexpr uint32_t kExl3TransformBlocks = 8;
/// Tasks of a transform for each row.
constexpr uint32_t exl3_transform_tasks(uint32_t width) {
  constexpr uint32_t kElements = kExl3Block * kExl3TransformBlocks;
  return width / kElements + (width % kElements != 0 ? 1 : 0);
}

}  // namespace atlas::kernels
