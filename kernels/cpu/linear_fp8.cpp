// Products of FP8 weights (kernels/common/fp8.h) with float32 rows, contract "f32". A tile's
// weights are decoded in registers; segments decoded once for many rows were measured and are no
// faster.
#include <algorithm>
#include <cstddef>

#include "kernels/common/fp8.h"
#include "kernels/common/packed_float.h"
#include "kernels/cpu/product_kernels.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_fp8.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>

#include "kernels/cpu/linear_walk-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Weights of kLanes outputs, four elements of k at a time.
template <Fp8Scales kScales>
class Fp8Weights {
 public:
  /// Elements along k that certainly share a scale; divides a segment of the contract.
  static constexpr uint32_t kStep = kScales == Fp8Scales::kRow     ? kF32Segment
                                    : kScales == Fp8Scales::kBlock ? kFp8Block
                                                                   : kMxBlock;

  Fp8Weights(const uint8_t* group, uint32_t lane, uint32_t k)
      : group_(group), codes_(group + fp8_head_bytes(kScales, k) + 4 * lane), lane_(lane) {}

  /// 2^120 times the scale of elements k .. k + kStep - 1.
  HWY_INLINE VF scale(uint32_t k) const {
    if constexpr (kScales == Fp8Scales::kRow) {
      return load_floats(group_ + 4 * lane_);
    } else if constexpr (kScales == Fp8Scales::kBlock) {
      return broadcast_float(group_ + k / kFp8Block * 4);
    } else {
      const hn::Rebind<uint8_t, U32> d8;
      const uint8_t* at = group_ + size_t{k} / kMxBlock * kRowGroup + lane_;
      const VU exponent = hn::Add(hn::PromoteTo(U32(), hn::LoadU(d8, at)), hn::Set(U32(), 120));
      return hn::BitCast(F32(), hn::ShiftLeft<23>(exponent));
    }
  }

  /// Elements k .. k + 3, k a multiple of 4.
  HWY_INLINE void load(uint32_t k, VF scale, VF (&w)[4]) const {
    const uint8_t* at = codes_ + size_t{k} * kRowGroup;
    if (kLanes == kRowGroup || lane_ == 0) hwy::Prefetch(at + kPrefetchBytes);
    const VU words = load_words(at);
    // A code at the top of a 32-bit float: its sign stays, its other seven bits move down by four.
    const VU even = high_halves<8>(words), odd = high_halves<0>(words);
    const VU top = hn::Set(U32(), 0xffff0000);
    w[0] = hn::Mul(hn::BitCast(F32(), hn::ShiftLeft<16>(even)), scale);
    w[1] = hn::Mul(hn::BitCast(F32(), hn::ShiftLeft<16>(odd)), scale);
    w[2] = hn::Mul(hn::BitCast(F32(), hn::And(even, top)), scale);
    w[3] = hn::Mul(hn::BitCast(F32(), hn::And(odd, top)), scale);
  }

 private:
  /// Of each 16-bit half, moved left by kLeft: the upper half of the float32 of its upper byte.
  template <int kLeft>
  static HWY_INLINE VU high_halves(VU words) {
#if HWY_TARGET == HWY_SCALAR
    const uint32_t moved = hn::GetLane(words) << kLeft;
    return hn::Set(U32(), (moved & 0x80008000) | (moved >> 4 & 0x07f007f0));
#else
    const hn::Repartition<int16_t, U32> d16;
    const auto moved = hn::ShiftLeft<kLeft>(hn::BitCast(d16, words));
    return hn::And(hn::BitCast(U32(), hn::ShiftRight<4>(moved)), hn::Set(U32(), 0x87f087f0));
#endif
  }

  const uint8_t* group_;
  const uint8_t* codes_;
  uint32_t lane_;
};

/// Adds elements [begin, end) of k, one segment, to the totals of kRows rows, with weights decoded
/// on the way.
template <Fp8Scales kScales, uint32_t kRows>
HWY_INLINE void add_rows(const Fp8Weights<kScales>& weights, uint32_t begin, uint32_t end,
                         const uint8_t* const (&x)[kRows], VF (&sums)[kRows]) {
  VF parts[2 * kRows];
  unrolled<2 * kRows>([&](auto i) ATLAS_INLINE_LAMBDA { parts[i] = hn::Zero(F32()); });
  VF w[4];
  const auto add = [&](uint32_t k, auto i) ATLAS_INLINE_LAMBDA {
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
      const VF value = broadcast_float(x[r] + (size_t{k} + i) * sizeof(float));
      constexpr uint32_t kPart = i % 2 * kRows + r;
      parts[kPart] = fma(w[i], value, parts[kPart]);
    });
  };
  for (uint32_t first = begin; first < end; first += weights.kStep) {
    const VF scale = weights.scale(first);
    const uint32_t stop = std::min(end, first + weights.kStep);
    uint32_t k = first;
    for (; k + 4 <= stop; k += 4) {
      weights.load(k, scale, w);
      unrolled<4>([&](auto i) ATLAS_INLINE_LAMBDA { add(k, i); });
    }
    if (k == stop) continue;
    weights.load(k, scale, w);  // the last one to three of k
    unrolled<3>([&](auto i) ATLAS_INLINE_LAMBDA {
      if (k + i < stop) add(k, i);
    });
  }
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    sums[r] = hn::Add(sums[r], hn::Add(parts[r], parts[kRows + r]));
  });
}

/// kLanes outputs of a product: what linear_walk-inl.h runs over rows.
template <Fp8Scales kScales>
class Fp8Product {
 public:
  Fp8Product(const uint8_t* group, uint32_t lane, uint32_t k) : weights_(group, lane, k), k_(k) {}

  static constexpr uint64_t group_bytes(uint64_t k) { return fp8_group_bytes(kScales, k); }

  template <uint32_t kRows>
  HWY_INLINE void tile(const uint8_t* const (&x)[kRows], VF (&sums)[kRows]) const {
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Zero(F32()); });
    for (uint32_t begin = 0; begin < k_; begin += kF32Segment) {
      const uint32_t end = begin + std::min(k_ - begin, kF32Segment);
      add_rows<kScales, kRows>(weights_, begin, end, x, sums);
    }
  }

 private:
  Fp8Weights<kScales> weights_;
  uint32_t k_;
};

ATLAS_CPU_PRODUCT(linear_fp8, grouped_fp8, Fp8Product<Fp8Scales::kRow>)
ATLAS_CPU_PRODUCT(linear_fp8_b128, grouped_fp8_b128, Fp8Product<Fp8Scales::kBlock>)
ATLAS_CPU_PRODUCT(linear_mxfp8, grouped_mxfp8, Fp8Product<Fp8Scales::kMx>)

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
ATLAS_CPU_PRODUCT_KERNELS(linear_fp8, grouped_fp8)
ATLAS_CPU_PRODUCT_KERNELS(linear_fp8_b128, grouped_fp8_b128)
ATLAS_CPU_PRODUCT_KERNELS(linear_mxfp8, grouped_mxfp8)

}  // namespace atlas::kernels::cpu
#endif
