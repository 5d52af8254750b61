// Products of floating-point weights (kernels/common/packed_float.h) with float32 rows, contract
// "f32". A lane is an output. Every element of k is one fma a row; even and odd elements have sums
// of their own, so that two chains of dependent fma run side by side even for one row.
#if defined(ATLAS_CPU_LINEAR_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_LINEAR_FLOAT_INL_H_
#undef ATLAS_CPU_LINEAR_FLOAT_INL_H_
#else
#define ATLAS_CPU_LINEAR_FLOAT_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>

#include "kernels/common/packed_float.h"
#include "kernels/cpu/linear_walk-inl.h"
#include "kernels/cpu/packed_weights-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Weights of kLanes outputs, two elements of k at a time.
template <FloatLayout kLayout>
class FloatWeights {
 public:
  struct Block {
    VF w[2];
  };

  FloatWeights(const uint8_t* group, uint32_t lane) : at_(group + float_offset(kLayout, lane, 0)) {}

  static constexpr uint64_t group_bytes(uint64_t k) { return float_group_bytes(kLayout, k); }

  /// Elements k and k + 1, k even; of a last odd element w[1] is not defined.
  HWY_INLINE Block load(uint32_t k, bool both) const {
    const uint8_t* at = at_ + float_offset(kLayout, 0, k);
    hwy::Prefetch(at + kPrefetchBytes);
    Block block;
    if constexpr (kLayout == FloatLayout::kBF16) {
      const VU words = load_words(at);
      block.w[0] = hn::BitCast(F32(), hn::ShiftLeft<16>(words));
      block.w[1] = hn::BitCast(F32(), hn::And(words, hn::Set(U32(), 0xffff0000)));
    } else if constexpr (kLayout == FloatLayout::kF16) {
      block.w[0] = load_f16s(at);
      block.w[1] = both ? load_f16s(at + 2 * kRowGroup) : hn::Zero(F32());
    } else {
      hwy::Prefetch(at + kPrefetchBytes + 64);
      block.w[0] = load_floats(at);
      block.w[1] = both ? load_floats(at + 4 * kRowGroup) : hn::Zero(F32());
    }
    return block;
  }

 private:
  const uint8_t* at_;
};

template <uint32_t kRows, uint32_t kCount, class Block>
HWY_INLINE void add_elements(const Block& block, const uint8_t* const (&x)[kRows], size_t at,
                             VF (&parts)[2 * kRows]) {
  unrolled<kCount>([&](auto element) ATLAS_INLINE_LAMBDA {
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
      const VF value = broadcast_float(x[r] + at + sizeof(float) * element);
      constexpr uint32_t kPart = element * kRows + r;
      parts[kPart] = fma(block.w[element], value, parts[kPart]);
    });
  });
}

/// Adds elements [begin, end) of k, one segment of the contract, to the totals of kRows rows.
template <class Weights, uint32_t kRows>
HWY_INLINE void add_segment(const Weights& weights, uint32_t begin, uint32_t end,
                            const uint8_t* const (&x)[kRows], VF (&sums)[kRows]) {
  VF parts[2 * kRows];
  unrolled<2 * kRows>([&](auto i) ATLAS_INLINE_LAMBDA { parts[i] = hn::Zero(F32()); });
  uint32_t k = begin;
  for (; k + 2 <= end; k += 2) {
    add_elements<kRows, 2>(weights.load(k, true), x, size_t{k} * sizeof(float), parts);
  }
  if (k < end) {
    add_elements<kRows, 1>(weights.load(k, false), x, size_t{k} * sizeof(float), parts);
  }
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    sums[r] = hn::Add(sums[r], hn::Add(parts[r], parts[kRows + r]));
  });
}

/// kLanes outputs of a product: what linear_walk-inl.h runs over rows.
template <class Weights>
class FloatProduct {
 public:
  FloatProduct(const uint8_t* group, uint32_t lane, uint32_t k) : weights_(group, lane), k_(k) {}

  static constexpr uint64_t group_bytes(uint64_t k) { return Weights::group_bytes(k); }

  template <uint32_t kRows>
  HWY_INLINE void tile(const uint8_t* const (&x)[kRows], VF (&sums)[kRows]) const {
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Zero(F32()); });
    for (uint32_t begin = 0; begin < k_; begin += kF32Segment) {
      const uint32_t end = begin + std::min(k_ - begin, kF32Segment);
      add_segment<Weights, kRows>(weights_, begin, end, x, sums);
    }
  }

 private:
  Weights weights_;
  uint32_t k_;
};

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LINEAR_FLOAT_INL_H_
