// Packs GGUF blocks: words of four codes move as they are, from rows to lanes (see packed.h).
#include "plugins/quant_gguf/pack.h"

#include <cstring>

namespace atlas::quant_gguf {
namespace {

using kernels::kRowGroup;
using kernels::load_u32;
using kernels::PackedLayout;
using kernels::PackedScales;

constexpr uint32_t kNibbles = 0x0f0f0f0f;

void store_word(uint32_t word, uint8_t* to) { std::memcpy(to, &word, sizeof(word)); }
void copy_u16(const uint8_t* from, uint8_t* to) { std::memcpy(to, from, 2); }

/// One bit for each of 32 elements, in element order, as the layout's high word: bit 4 i + b goes
/// to bit 8 b + i.
constexpr uint32_t high_word_of_bits(uint32_t bits) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t four = bits >> 4 * i & 15;
    word |= (four * 0x00204081u & 0x01010101u) << i;  // bits 0..3 to bits 0, 8, 16, 24
  }
  return word;
}
static_assert(high_word_of_bits(1u << 5) == 1u << kernels::high_shift(kernels::kPackedQ5_0, 5));
static_assert(high_word_of_bits(1u << 31) == 1u << kernels::high_shift(kernels::kPackedQ5_0, 31));

/// Bit `bit` of each of 32 bytes, as the layout's high word.
uint32_t high_word_of_bytes(const uint8_t* bytes, int bit) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) word |= (load_u32(bytes + 4 * i) >> bit & 0x01010101u) << i;
  return word;
}

/// Bits `shift` and `shift` + 1 of each of 16 bytes, as one of the layout's two high words.
uint32_t high_word_of_pairs(const uint8_t* bytes, int shift) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= (load_u32(bytes + 4 * i) >> shift & 0x03030303u) << 2 * i;
  return word;
}

/// Blocks of 32 elements: scales, then high bits and codes that are already in words.
template <const PackedLayout& kLayout>
void pack_small(const uint8_t* const* rows, uint64_t blocks, uint8_t* out) {
  constexpr bool kMin = kLayout.scales == PackedScales::kF16Min;
  constexpr uint32_t kHighAt = kMin ? 4 : 2;
  constexpr uint32_t kCodesAt = kHighAt + 4 * kLayout.high_words();
  constexpr uint32_t kBlockBytes = kCodesAt + 4 * kLayout.code_words();
  for (uint64_t b = 0; b < blocks; ++b, out += kLayout.unit_bytes()) {
    for (uint32_t r = 0; r < kRowGroup; ++r) {
      if (rows[r] == nullptr) continue;
      const uint8_t* block = rows[r] + b * kBlockBytes;
      copy_u16(block, out + 2 * r);
      if constexpr (kMin) copy_u16(block + 2, out + 32 + 2 * r);
      if constexpr (kLayout.high_words() == 1) {
        store_word(high_word_of_bits(load_u32(block + kHighAt)),
                   out + kLayout.high_offset() + 4 * r);
      }
      uint8_t* codes = out + kLayout.codes_offset() + 4 * r;
      for (uint32_t i = 0; i < kLayout.code_words(); ++i) {
        std::memcpy(codes + 64 * i, block + kCodesAt + 4 * i, 4);
      }
    }
  }
}

/// The 32 nibbles of sub-block j from Q4_K's or Q5_K's codes, as the layout's four words.
void store_nibbles_k(const uint8_t* codes, int j, uint8_t* to) {
  const uint8_t* from = codes + 32 * (j / 2);
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = load_u32(from + 4 * i) >> 4 * (j & 1) & kNibbles;
    const uint32_t high = load_u32(from + 16 + 4 * i) >> 4 * (j & 1) & kNibbles;
    store_word(low | high << 4, to + 64 * i);
  }
}

template <const PackedLayout& kLayout>
void pack_large(const uint8_t* const* rows, uint64_t blocks, uint8_t* out) {
  constexpr bool kHigh = kLayout.high_words() != 0;
  constexpr uint32_t kBlockBytes = kHigh ? 176 : 144;
  for (uint64_t b = 0; b < blocks; ++b, out += kLayout.unit_bytes()) {
    for (uint32_t r = 0; r < kRowGroup; ++r) {
      if (rows[r] == nullptr) continue;
      const uint8_t* block = rows[r] + b * kBlockBytes;
      copy_u16(block, out + 2 * r);
      copy_u16(block + 2, out + 32 + 2 * r);
      uint8_t* sub = out + kLayout.head_bytes();
      for (int j = 0; j < 8; ++j, sub += kLayout.sub_bytes()) {
        kernels::scale_min_k(block + 4, j, sub + r, sub + 16 + r);
        if constexpr (kHigh) {
          store_word(high_word_of_bytes(block + 16, j), sub + kLayout.high_offset() + 4 * r);
        }
        store_nibbles_k(block + (kHigh ? 48 : 16), j, sub + kLayout.codes_offset() + 4 * r);
      }
    }
  }
}

void pack_six(const uint8_t* const* rows, uint64_t blocks, uint8_t* out) {
  constexpr PackedLayout kLayout = kernels::kPackedQ6_K;
  for (uint64_t b = 0; b < blocks; ++b, out += kLayout.unit_bytes()) {
    for (uint32_t r = 0; r < kRowGroup; ++r) {
      if (rows[r] == nullptr) continue;
      const uint8_t* block = rows[r] + b * 210;
      copy_u16(block + 208, out + 2 * r);
      uint8_t* sub = out + kLayout.head_bytes();
      for (int j = 0; j < 8; ++j, sub += kLayout.sub_bytes()) {
        sub[r] = block[192 + 2 * j];
        sub[16 + r] = block[192 + 2 * j + 1];
        for (int half = 0; half < 2; ++half) {
          const uint8_t* pairs = block + 128 + 32 * (j / 4) + 16 * half;
          store_word(high_word_of_pairs(pairs, 2 * (j % 4)),
                     sub + kLayout.high_offset() + 64 * half + 4 * r);
        }
        // Quarter j % 4 of a half: 32 low-nibble bytes shared by quarters j and j + 2.
        const uint8_t* from = block + 64 * (j / 4) + 32 * (j & 1);
        const int shift = 4 * (j % 4 / 2);
        for (int i = 0; i < 4; ++i) {
          const uint32_t low = load_u32(from + 4 * i) >> shift & kNibbles;
          const uint32_t later = load_u32(from + 16 + 4 * i) >> shift & kNibbles;
          store_word(low | later << 4, sub + kLayout.codes_offset() + 64 * i + 4 * r);
        }
      }
    }
  }
}

/// Rows that do not exist are zeros; the others overwrite all of their bytes.
template <auto kPack, const PackedLayout& kLayout>
void pack_group(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  if (rows[kRowGroup - 1] == nullptr) std::memset(out, 0, kLayout.group_bytes(k));
  kPack(rows, k / kLayout.block(), out);
}

}  // namespace

using namespace kernels;  // the layouts' names

void pack_q4_0(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_group<pack_small<kPackedQ4_0>, kPackedQ4_0>(rows, k, out);
}
void pack_q4_1(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_group<pack_small<kPackedQ4_1>, kPackedQ4_1>(rows, k, out);
}
void pack_q5_0(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_group<pack_small<kPackedQ5_0>, kPackedQ5_0>(rows, k, out);
}
void pack_q5_1(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_group<pack_small<kPackedQ5_1>, kPackedQ5_1>(rows, k, out);
}
void pack_q8_0(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_group<pack_small<kPackedQ8_0>, kPackedQ8_0>(rows, k, out);
}
void pack_q4_k(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_group<pack_large<kPackedQ4_K>, kPackedQ4_K>(rows, k, out);
}
void pack_q5_k(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_group<pack_large<kPackedQ5_K>, kPackedQ5_K>(rows, k, out);
}
void pack_q6_k(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_group<pack_six, kPackedQ6_K>(rows, k, out);
}

}  // namespace atlas::quant_gguf
