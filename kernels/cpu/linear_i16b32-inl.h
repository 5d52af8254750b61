// Products of block-quantized weights (kernels/common/packed.h) with rows in the encoding i16b32.
//
// A lane is an output, so nothing is summed across lanes. A block of 32 elements is an exact 32-bit
// integer per output and row; what is added to the float32 accumulator, and in which order, is the
// contract "i16b32" (kernels/common/linear.h). A tile is up to eight rows: codes are unpacked in
// registers, as 16-bit pairs, and each pair meets all of the tile's rows. Unpacking for many rows
// at once into scratch was measured and is no faster: shifts and masks run beside the
// multiplications.
#if defined(ATLAS_CPU_LINEAR_I16B32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_LINEAR_I16B32_INL_H_
#undef ATLAS_CPU_LINEAR_I16B32_INL_H_
#else
#define ATLAS_CPU_LINEAR_I16B32_INL_H_
#endif

#include <hwy/cache_control.h>

#include <cstddef>
#include <utility>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/i16b32.h"
#include "kernels/common/packed.h"
#include "kernels/cpu/linear_walk-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

constexpr uint32_t kWords = 8;  // of four codes in a block

/// Weights of kLanes outputs in the resident layout.
template <PackedLayout kLayout>
class PackedWeights {
 public:
  static constexpr bool kMin = kLayout.has_min();
  static constexpr bool kHalves = kLayout.scales == PackedScales::kByteHalves;
  static constexpr int32_t kZero = kLayout.zero;

  PackedWeights(const uint8_t* group, uint32_t lane) : group_(group), lane_(lane) {}

  struct Unit {
    const uint8_t* at;
    VF d, dmin;  // of blocks of 256
  };
  struct Block {
    VU codes[kLayout.code_words()];
    VU high[kLayout.high_words() + 1];
    VF scale, second;  // second: the minimum, or the scale of elements 16..31
  };

  HWY_INLINE Unit load_unit(uint32_t index) const {
    Unit unit;
    unit.at = group_ + size_t{index} * kLayout.unit_bytes();
    if constexpr (kLayout.large()) unit.d = load_f16s(unit.at + 2 * lane_);
    if constexpr (kLayout.large() && kMin) unit.dmin = load_f16s(unit.at + 32 + 2 * lane_);
    return unit;
  }

  HWY_INLINE Block load(const Unit& unit, uint32_t index) const {
    const uint8_t* sub = unit.at + kLayout.head_bytes() + index * kLayout.sub_bytes();
    unrolled<(kLayout.sub_bytes() + 63) / 64>(
        [&](auto i) ATLAS_INLINE_LAMBDA { hwy::Prefetch(sub + kPrefetchBytes + 64 * i); });
    Block block;
    unrolled<kLayout.code_words()>([&](auto i) ATLAS_INLINE_LAMBDA {
      block.codes[i] = load_words(sub + kLayout.codes_offset() + 64 * i + 4 * lane_);
    });
    unrolled<kLayout.high_words()>([&](auto i) ATLAS_INLINE_LAMBDA {
      block.high[i] = load_words(sub + kLayout.high_offset() + 64 * i + 4 * lane_);
    });
    if constexpr (kLayout.scales == PackedScales::kF16) {
      block.scale = load_f16s(sub + 2 * lane_);
    } else if constexpr (kLayout.scales == PackedScales::kF16Min) {
      block.scale = load_f16s(sub + 2 * lane_);
      block.second = load_f16s(sub + 32 + 2 * lane_);
    } else if constexpr (kLayout.scales == PackedScales::kByteMin) {
      block.scale = hn::Mul(unit.d, load_u8s(sub + lane_));
      block.second = hn::Neg(hn::Mul(unit.dmin, load_u8s(sub + 16 + lane_)));
    } else {
      block.scale = hn::Mul(unit.d, load_i8s(sub + lane_));
      block.second = hn::Mul(unit.d, load_i8s(sub + 16 + lane_));
    }
    return block;
  }

  /// The codes of elements 4 kWord ..+3, a byte each.
  template <uint32_t kWord>
  static HWY_INLINE VU bytes(const Block& block) {
    if constexpr (kLayout.codes == PackedCodes::kByte) {
      return block.codes[kWord];
    } else {
      const VU word = block.codes[kWord % 4];
      const VU nibbles = hn::And(kWord < 4 ? word : hn::ShiftRight<4>(word), mask(0x0f0f0f0f));
      return with_high<kWord>(block, nibbles);
    }
  }
  /// Byte kByte of each half: the codes of two elements as 16-bit numbers.
  template <int kByte>
  static HWY_INLINE VU pair(VU bytes) {
    if constexpr (kLayout.codes == PackedCodes::kByte) {
      return halves_signed_byte<kByte>(bytes);
    } else {
      return halves_byte<kByte>(bytes);
    }
  }

 private:
  static HWY_INLINE VU mask(uint32_t bits) { return hn::Set(U32(), bits); }
  template <uint32_t kWord>
  static HWY_INLINE VU with_high(const Block& block, VU nibbles) {
    if constexpr (kLayout.high_words() == 0) {
      return nibbles;
    } else {
      constexpr bool kTwo = kLayout.high_words() == 2;
      constexpr int kAt = kTwo ? 2 * (kWord % 4) : kWord;  // of the bits in each byte; to bit 4
      const VU word = block.high[kTwo ? kWord / 4 : 0];
      const VU bits = mask(kTwo ? 0x30303030 : 0x10101010);
      if constexpr (kAt > 4) {
        return hn::OrAnd(nibbles, hn::ShiftRight<kAt - 4>(word), bits);
      } else {
        return hn::OrAnd(nibbles, hn::ShiftLeft<4 - kAt>(word), bits);
      }
    }
  }

  const uint8_t* group_;
  uint32_t lane_;
};

/// The exact sums of code * x over kCount words of four elements from word kFirst, for kRows rows.
/// One or two rows are summed in two parts, since a chain of dependent products would be too long.
template <class Weights, uint32_t kRows, uint32_t kFirst, uint32_t kCount>
HWY_INLINE void dot_words(const typename Weights::Block& block, const uint8_t* x, size_t x_stride,
                          VI (&dots)[kRows]) {
  constexpr uint32_t kParts = kRows <= 2 ? 2 : 1;
  VI parts[kParts * kRows];
  unrolled<kParts * kRows>([&](auto i) ATLAS_INLINE_LAMBDA { parts[i] = hn::Zero(I32()); });
  unrolled<kCount>([&](auto word) ATLAS_INLINE_LAMBDA {
    const VU bytes = Weights::template bytes<kFirst + word>(block);
    unrolled<2>([&](auto byte) ATLAS_INLINE_LAMBDA {
      const VU w = Weights::template pair<byte>(bytes);
      constexpr uint32_t kPart = kParts == 2 ? byte * kRows : 0;
      unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
        const uint8_t* codes = x + r * x_stride + offsetof(I16B32Block, code);
        const VI pair = broadcast_word(codes + 8 * (kFirst + word) + 4 * byte);
        parts[kPart + r] = dot_halves(parts[kPart + r], w, pair);
      });
    });
  });
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    dots[r] = kParts == 2 ? hn::Add(parts[r], parts[kRows * (kParts - 1) + r]) : parts[r];
    if constexpr (Weights::kZero != 0) {  // less the codes' zero, times the sum of the row's codes
      constexpr int kLog2 = hwy::CeilLog2(uint32_t{Weights::kZero});
      static_assert(1 << kLog2 == Weights::kZero);
      const uint8_t* sums = x + r * x_stride + offsetof(I16B32Block, half_sums);
      VI sum = broadcast_word(sums + kFirst);
      if constexpr (kCount == kWords) sum = hn::Add(sum, broadcast_word(sums + 4));
      dots[r] = hn::Sub(dots[r], hn::ShiftLeft<kLog2>(sum));
    }
  });
}

/// sums[r] = fma(scale * x_scale[r], dots[r], sums[r]).
template <uint32_t kRows>
HWY_INLINE void add_scaled(VF scale, const VI (&dots)[kRows], const uint8_t* x, size_t x_stride,
                           VF (&sums)[kRows]) {
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    const VF x_scale = broadcast_float(x + r * x_stride + offsetof(I16B32Block, scale));
    sums[r] = fma(hn::Mul(scale, x_scale), hn::ConvertTo(F32(), dots[r]), sums[r]);
  });
}

/// Adds one block to the accumulators of kRows rows, as the contract orders it.
template <class Weights, uint32_t kRows>
HWY_INLINE void add_block(const typename Weights::Block& block, const uint8_t* x, size_t x_stride,
                          VF (&sums)[kRows]) {
  VI dots[kRows];
  if constexpr (Weights::kHalves) {
    dot_words<Weights, kRows, 0, kWords / 2>(block, x, x_stride, dots);
    add_scaled(block.scale, dots, x, x_stride, sums);
    dot_words<Weights, kRows, kWords / 2, kWords / 2>(block, x, x_stride, dots);
    add_scaled(block.second, dots, x, x_stride, sums);
  } else {
    dot_words<Weights, kRows, 0, kWords>(block, x, x_stride, dots);
    add_scaled(block.scale, dots, x, x_stride, sums);
  }
  if constexpr (Weights::kMin) {
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
      const VF x_sum = broadcast_float(x + r * x_stride + offsetof(I16B32Block, sum));
      sums[r] = fma(block.second, x_sum, sums[r]);
    });
  }
}

/// kLanes outputs of a product: what linear_walk-inl.h runs over rows.
template <PackedLayout kLayout>
class BlockProduct {
 public:
  BlockProduct(const LinearParams& params, const uint8_t* group, uint32_t lane)
      : weights_(group, lane),
        x_(static_cast<const uint8_t*>(params.x)),
        x_stride_(params.x_row_bytes),
        units_(params.k / kLayout.block()) {}

  static constexpr uint64_t group_bytes(uint64_t k) { return kLayout.group_bytes(k); }

  template <uint32_t kRows>
  HWY_INLINE void tile(uint32_t row, VF (&sums)[kRows]) const {
    using Weights = PackedWeights<kLayout>;
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Zero(F32()); });
    const uint8_t* x = x_ + row * x_stride_;
    for (uint32_t u = 0; u < units_; ++u) {
      const typename Weights::Unit unit = weights_.load_unit(u);
      for (uint32_t b = 0; b < kLayout.subs(); ++b, x += sizeof(I16B32Block)) {
        add_block<Weights, kRows>(weights_.load(unit, b), x, x_stride_, sums);
      }
    }
  }

 private:
  PackedWeights<kLayout> weights_;
  const uint8_t* x_;
  size_t x_stride_;
  uint32_t units_;
};

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LINEAR_I16B32_INL_H_
