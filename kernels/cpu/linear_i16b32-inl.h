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

#include <cstddef>
#include <utility>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/i16b32.h"
#include "kernels/cpu/linear_walk-inl.h"
#include "kernels/cpu/packed_weights-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// The exact sums of code * x over kCount words of four elements from word kFirst, for kRows rows.
/// One or two rows are summed in two parts, since a chain of dependent products would be too long.
template <class Weights, uint32_t kRows, uint32_t kFirst, uint32_t kCount>
HWY_INLINE void dot_words(const typename Weights::Block& block, const uint8_t* const (&x)[kRows],
                          size_t at, VI (&dots)[kRows]) {
  constexpr uint32_t kParts = kRows <= 2 ? 2 : 1;
  VI parts[kParts * kRows];
  unrolled<kParts * kRows>([&](auto i) ATLAS_INLINE_LAMBDA { parts[i] = hn::Zero(I32()); });
  unrolled<kCount>([&](auto word) ATLAS_INLINE_LAMBDA {
    const VU bytes = Weights::template bytes<kFirst + word>(block);
    unrolled<2>([&](auto byte) ATLAS_INLINE_LAMBDA {
      const VU w = Weights::template pair<byte>(bytes);
      constexpr uint32_t kPart = kParts == 2 ? byte * kRows : 0;
      unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
        const uint8_t* codes = x[r] + at + offsetof(I16B32Block, code);
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
      const uint8_t* sums = x[r] + at + offsetof(I16B32Block, half_sums);
      VI sum = broadcast_word(sums + kFirst);
      if constexpr (kCount == kWords) sum = hn::Add(sum, broadcast_word(sums + 4));
      dots[r] = hn::Sub(dots[r], hn::ShiftLeft<kLog2>(sum));
    }
  });
}

/// sums[r] = fma(scale * x_scale[r], dots[r], sums[r]).
template <uint32_t kRows>
HWY_INLINE void add_scaled(VF scale, const VI (&dots)[kRows], const uint8_t* const (&x)[kRows],
                           size_t at, VF (&sums)[kRows]) {
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    const VF x_scale = broadcast_float(x[r] + at + offsetof(I16B32Block, scale));
    sums[r] = fma(hn::Mul(scale, x_scale), hn::ConvertTo(F32(), dots[r]), sums[r]);
  });
}

/// Adds one block to the accumulators of kRows rows, as the contract orders it.
template <class Weights, uint32_t kRows>
HWY_INLINE void add_block(const typename Weights::Block& block, const uint8_t* const (&x)[kRows],
                          size_t at, VF (&sums)[kRows]) {
  VI dots[kRows];
  if constexpr (Weights::kHalves) {
    dot_words<Weights, kRows, 0, kWords / 2>(block, x, at, dots);
    add_scaled(block.scale, dots, x, at, sums);
    dot_words<Weights, kRows, kWords / 2, kWords / 2>(block, x, at, dots);
    add_scaled(block.second, dots, x, at, sums);
  } else {
    dot_words<Weights, kRows, 0, kWords>(block, x, at, dots);
    add_scaled(block.scale, dots, x, at, sums);
  }
  if constexpr (Weights::kMin) {
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
      const VF x_sum = broadcast_float(x[r] + at + offsetof(I16B32Block, sum));
      sums[r] = fma(block.second, x_sum, sums[r]);
    });
  }
}

/// kLanes outputs of a product: what linear_walk-inl.h runs over rows.
template <PackedLayout kLayout>
class BlockProduct {
 public:
  BlockProduct(const uint8_t* group, uint32_t lane, uint32_t k)
      : weights_(group, lane), units_(k / kLayout.block()) {}

  static constexpr uint64_t group_bytes(uint64_t k) { return kLayout.group_bytes(k); }

  template <uint32_t kRows>
  HWY_INLINE void tile(const uint8_t* const (&x)[kRows], VF (&sums)[kRows]) const {
    using Weights = PackedWeights<kLayout>;
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Zero(F32()); });
    size_t at = 0;  // of the block in each row of x
    for (uint32_t u = 0; u < units_; ++u) {
      const typename Weights::Unit unit = weights_.load_unit(u);
      for (uint32_t b = 0; b < kLayout.subs(); ++b, at += sizeof(I16B32Block)) {
        add_block<Weights, kRows>(weights_.load(unit, b), x, at, sums);
      }
    }
  }

 private:
  PackedWeights<kLayout> weights_;
  uint32_t units_;
};

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LINEAR_I16B32_INL_H_
