// Random weights in a GGUF block format: blocks as in a checkpoint, decoded, and packed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "plugins/quant_gguf/pack.h"
#include "tests/support/cpu_pack.h"

namespace atlas::test {

inline const quant_gguf::BlockFormat& block_format(std::string_view name) {
  for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
    if (name == format.name) return format;
  }
  throw std::runtime_error("no block format of that name");
}

/// A small half, as float16 bits: sign, an exponent around 2^-5, any mantissa.
inline uint16_t random_half(std::mt19937& random, bool positive) {
  const auto bits = static_cast<uint16_t>(random());
  const auto exponent = static_cast<uint16_t>(8 + random() % 5);
  return static_cast<uint16_t>((bits & (positive ? 0x03ff : 0x83ff)) | exponent << 10);
}

struct GgufWeights {
  GgufWeights(const quant_gguf::BlockFormat& block_format, uint32_t rows, uint32_t columns,
              uint32_t seed = 1)
      : format(block_format),
        n(rows),
        k(columns),
        row_bytes(size_t{k} / format.layout.block() * format.block_bytes),
        blocks(row_bytes * n),
        packed(group_count() * format.layout.group_bytes(k)) {
    std::mt19937 random(seed);
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
    const size_t count = blocks.size() / format.block_bytes;
    for (size_t b = 0; b < count; ++b) set_halves(random, blocks.data() + b * format.block_bytes);
    pack(0, group_count());
  }

  size_t group_count() const { return (n + kernels::kRowGroup - 1) / kernels::kRowGroup; }
  const uint8_t* row(uint32_t index) const { return blocks.data() + index * row_bytes; }

  void pack(size_t begin, size_t end) {
    for (size_t g = begin; g < end; ++g) {
      const uint8_t* rows[kernels::kRowGroup] = {};
      for (uint32_t r = 0; r < kernels::kRowGroup; ++r) {
        const size_t index = g * kernels::kRowGroup + r;
        if (index < n) rows[r] = row(static_cast<uint32_t>(index));
      }
      format.pack(rows, k, packed.as<uint8_t>() + g * format.layout.group_bytes(k));
    }
  }

  /// Row `index` as the checkpoint's decoder gives it.
  std::vector<float> decode(uint32_t index) const {
    std::vector<float> out(k);
    for (uint32_t b = 0; b < k / format.layout.block(); ++b) {
      format.decode(row(index) + size_t{b} * format.block_bytes,
                    out.data() + size_t{b} * format.layout.block());
    }
    return out;
  }

  const quant_gguf::BlockFormat& format;
  uint32_t n, k;
  size_t row_bytes;
  std::vector<uint8_t> blocks;
  Aligned packed;

 private:
  void set_halves(std::mt19937& random, uint8_t* block) const {
    const bool last = format.dtype == ATLAS_Q6_K;
    const uint16_t d = random_half(random, false);
    std::memcpy(block + (last ? 208 : 0), &d, 2);
    if (!format.layout.has_min()) return;
    const uint16_t min = random_half(random, false);
    std::memcpy(block + 2, &min, 2);
  }
};

}  // namespace atlas::test
