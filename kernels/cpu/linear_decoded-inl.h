// Products of block formats (kernels/common/packed.h) with float32 rows, contract "f32": for each
// tile of rows and segment of k, weights are decoded to floats in a buffer that stays in the first
// cache.
#if defined(ATLAS_CPU_LINEAR_DECODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_LINEAR_DECODED_INL_H_
#undef ATLAS_CPU_LINEAR_DECODED_INL_H_
#else
#define ATLAS_CPU_LINEAR_DECODED_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/linear_float-inl.h"
#include "kernels/cpu/packed_weights-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// A segment of decoded weights: element k of kLanes outputs together.
class DecodedSegment {
 public:
  struct Block {
    VF w[2];
  };
  HWY_INLINE Block load(uint32_t k, bool) const {
    const float* at = floats + k % kF32Segment * kLanes;
    return {{hn::LoadU(F32(), at), hn::LoadU(F32(), at + kLanes)}};
  }

  float floats[kF32Segment * kLanes];
};

/// Element 4 kWord + kByte of a block, the float that the checkpoint's decoder gives: the product
/// of scale and code is exact, a minimum is added with one rounding.
template <PackedLayout kLayout, uint32_t kWord, uint32_t kByte>
HWY_INLINE VF decoded(const typename PackedWeights<kLayout>::Block& block, VU bytes) {
  const VF scale = PackedWeights<kLayout>::kHalves && kWord >= 4 ? block.second : block.scale;
  VI code;
  if constexpr (kLayout.codes == PackedCodes::kByte) {
    code = hn::ShiftRight<24>(hn::ShiftLeft<24 - 8 * kByte>(hn::BitCast(I32(), bytes)));
  } else {
    code = hn::BitCast(I32(), hn::And(hn::ShiftRight<8 * kByte>(bytes), hn::Set(U32(), 0xff)));
    if constexpr (kLayout.zero != 0) code = hn::Sub(code, hn::Set(I32(), kLayout.zero));
  }
  const VF value = hn::ConvertTo(F32(), code);
  if constexpr (kLayout.has_min()) return fma(scale, value, block.second);
  return hn::Mul(scale, value);
}

/// Decodes elements [begin, end) of k, both multiples of 32.
template <PackedLayout kLayout>
HWY_NOINLINE void decode_segment(const PackedWeights<kLayout>& weights, uint32_t begin,
                                 uint32_t end, DecodedSegment& segment) {
  float* to = segment.floats;
  for (uint32_t b = begin / 32; b < end / 32; ++b, to += 32 * kLanes) {
    const auto block = weights.load(weights.load_unit(b / kLayout.subs()), b % kLayout.subs());
    unrolled<kWords>([&](auto word) ATLAS_INLINE_LAMBDA {
      const VU bytes = PackedWeights<kLayout>::template bytes<word>(block);
      unrolled<4>([&](auto byte) ATLAS_INLINE_LAMBDA {
        const VF value = decoded<kLayout, word, byte>(block, bytes);
        hn::StoreU(value, F32(), to + (4 * word + byte) * kLanes);
      });
    });
  }
}

/// One row: adds elements [begin, end) of k, one segment, with weights decoded on the way.
template <PackedLayout kLayout>
HWY_NOINLINE VF add_one_row(const PackedWeights<kLayout>& weights, uint32_t begin, uint32_t end,
                            const uint8_t* x, VF sum) {
  VF parts[2] = {hn::Zero(F32()), hn::Zero(F32())};
  x += size_t{begin} * sizeof(float);
  for (uint32_t b = begin / 32; b < end / 32; ++b, x += 32 * sizeof(float)) {
    const auto block = weights.load(weights.load_unit(b / kLayout.subs()), b % kLayout.subs());
    unrolled<kWords>([&](auto word) ATLAS_INLINE_LAMBDA {
      const VU bytes = PackedWeights<kLayout>::template bytes<word>(block);
      unrolled<4>([&](auto byte) ATLAS_INLINE_LAMBDA {
        const VF value = broadcast_float(x + sizeof(float) * (4 * word + byte));
        parts[byte % 2] = fma(decoded<kLayout, word, byte>(block, bytes), value, parts[byte % 2]);
      });
    });
  }
  return hn::Add(sum, hn::Add(parts[0], parts[1]));
}

/// One copy for all formats.
template <uint32_t kRows>
HWY_NOINLINE void add_decoded(const DecodedSegment& segment, uint32_t begin, uint32_t end,
                              const uint8_t* const* x, VF* totals) {
  const uint8_t* rows[kRows];
  VF sums[kRows];
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    rows[r] = x[r];
    sums[r] = totals[r];
  });
  add_segment<DecodedSegment, kRows>(segment, begin, end, rows, sums);
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { totals[r] = sums[r]; });
}

/// kLanes outputs of a product: what linear_walk-inl.h runs over rows.
template <PackedLayout kLayout>
class DecodedProduct {
 public:
  /// Rows that share a decoded segment, in tiles of kTileRows.
  static constexpr uint32_t kManyRows = 4 * kTileRows;

  DecodedProduct(const uint8_t* group, uint32_t lane, uint32_t k) : weights_(group, lane), k_(k) {}

  static constexpr uint64_t group_bytes(uint64_t k) { return kLayout.group_bytes(k); }

  template <uint32_t kRows>
  HWY_INLINE void tile(const uint8_t* const (&x)[kRows], VF (&sums)[kRows]) const {
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Zero(F32()); });
    for (uint32_t begin = 0; begin < k_; begin += kF32Segment) {
      const uint32_t end = begin + std::min(k_ - begin, kF32Segment);
      if constexpr (kRows == 1) {
        sums[0] = add_one_row(weights_, begin, end, x[0], sums[0]);
      } else {
        HWY_ALIGN DecodedSegment segment;
        decode_segment(weights_, begin, end, segment);
        constexpr uint32_t kTile = kRows < kTileRows ? kRows : kTileRows;
        for (uint32_t r = 0; r < kRows; r += kTile) {
          add_decoded<kTile>(segment, begin, end, x + r, sums + r);
        }
      }
    }
  }

 private:
  PackedWeights<kLayout> weights_;
  uint32_t k_;
};

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LINEAR_DECODED_INL_H_
