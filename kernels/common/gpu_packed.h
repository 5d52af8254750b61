// The resident layout of block-quantized weights (GGUF's formats) on GPUs; gpu_weights.h says what
// strands and words are. Codes and scales are those of packed.h, in another order.
//
//   unit   = scales of its blocks of 32 elements, high bits, codes; 64 elements, or 32 of 8-bit
//   codes scales = a record a row, in the order of row_place, of each block: kF16: f16 d; kF16Min:
//   f16 d
//            and m; kByteMin: u8 scale and min; kByteHalves: two i8 scales
//   high   = a strand's words' bits: one byte or two a word. 1 bit: pair j of a word has bits j and
//            4 + j; 2 bits: bits 2 j and 8 + 2 j
//   codes  = nibbles: pair j of a word has nibbles j and 4 + j; bytes: as in gpu_fp8.h
//   A block of 256 is four units behind a head: a record a row of f16 d, and dmin with minima.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/gpu_fp8.h"
#include "kernels/common/gpu_weights.h"
#include "kernels/common/packed.h"

namespace atlas::kernels {

struct GpuPacked {
  PackedLayout layout;

  constexpr bool bytes() const { return layout.codes == PackedCodes::kByte; }
  constexpr uint32_t unit() const { return bytes() ? 32 : 64; }  // elements
  constexpr uint32_t blocks() const { return unit() / kBlockElements; }
  /// Bytes of a row's record of one block; of all blocks of a unit; of a head.
  constexpr uint32_t block_record() const { return layout.scales == PackedScales::kF16Min ? 4 : 2; }
  constexpr uint32_t record() const { return blocks() * block_record(); }
  constexpr uint32_t head_record() const { return layout.large() ? (layout.has_min() ? 4 : 2) : 0; }
  constexpr uint32_t high_bits() const { return layout.high_words(); }
  constexpr uint32_t high_offset() const { return kTileOutputs * record(); }
  constexpr uint32_t codes_offset() const {
    return high_offset() + kTileOutputs * unit() * high_bits() / 8;
  }
  constexpr uint32_t unit_bytes() const {
    return codes_offset() + kTileOutputs * unit() / (bytes() ? 1 : 2);
  }
  constexpr uint32_t head_bytes() const { return kTileOutputs * head_record(); }
  /// Where unit `at` of a group begins, and the head that it has.
  constexpr uint64_t head_offset(uint64_t at) const {
    return at / 4 * (head_bytes() + 4 * unit_bytes());
  }
  constexpr uint64_t unit_offset(uint64_t at) const {
    if (!layout.large()) return at * unit_bytes();
    return head_offset(at) + head_bytes() + at % 4 * unit_bytes();
  }
  constexpr uint64_t group_bytes(uint64_t k) const {
    const uint64_t units = whole_units(k, unit());
    return layout.large() ? head_offset(units) : units * unit_bytes();
  }
  /// gpu_products.h's many_tiles.
  constexpr bool wide() const { return true; }
};

/// A group of the CPU's layout (packed.h) as a group of this one.
inline void pack_gpu_packed(MatrixFamily family, const GpuPacked& to, const uint8_t* group,
                            uint64_t k, uint8_t* out) {
  const PackedLayout& layout = to.layout;
  std::memset(out, 0, to.group_bytes(k));
  const uint32_t words = block_words(family);
  for (uint64_t b = 0; b < k / kBlockElements; ++b) {
    const uint8_t* from = group + b / layout.subs() * layout.unit_bytes();
    const uint8_t* sub = from + layout.head_bytes() + b % layout.subs() * layout.sub_bytes();
    uint8_t* unit = out + to.unit_offset(b / to.blocks());
    const uint32_t block = static_cast<uint32_t>(b % to.blocks());
    for (uint32_t row = 0; row < kTileOutputs; ++row) {
      const uint32_t place = row_place(family, row);
      uint8_t* record = unit + place * to.record() + block * to.block_record();
      if (layout.large()) {
        record[0] = sub[row];
        record[1] = sub[16 + row];
        uint8_t* head = out + to.head_offset(b / to.blocks()) + place * to.head_record();
        std::memcpy(head, from + 2 * row, 2);
        if (layout.has_min()) std::memcpy(head + 2, from + 32 + 2 * row, 2);
      } else {
        std::memcpy(record, sub + 2 * row, 2);
        if (layout.has_min()) std::memcpy(record + 2, sub + 32 + 2 * row, 2);
      }
    }
    for (uint32_t strand = 0; strand < strands(family); ++strand) {
      for (uint32_t w = 0; w < words; ++w) {
        uint8_t bytes[kWordElements];
        uint32_t nibbles = 0, high = 0;
        for (uint32_t e = 0; e < kWordElements; ++e) {
          const device::Element at = word_element(family, strand, w, e);
          const auto code = static_cast<uint32_t>(packed_code(layout, sub, at.row, at.k));
          bytes[e / 4 * 4 + gpu_byte_place(e % 4)] = static_cast<uint8_t>(code);
          nibbles |= (code & 15) << 4 * (e / 2 + 4 * (e % 2));
          high |= (code >> 4 & 3) << to.high_bits() * (e / 2 + 4 * (e % 2));
        }
        const uint32_t at = block * words + w, all = to.blocks() * words;
        if (to.bytes()) {
          std::memcpy(unit + to.codes_offset() + strand_offset(family, strand, 8 * at), bytes, 8);
          continue;
        }
        std::memcpy(unit + to.codes_offset() + strand_offset(family, strand, 4 * at), &nibbles, 4);
        std::memcpy(unit + to.high_offset() + (strand * all + at) * to.high_bits(), &high,
                    to.high_bits());
      }
    }
  }
}

}  // namespace atlas::kernels
