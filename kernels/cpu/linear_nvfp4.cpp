// Products of NVFP4 weights (kernels/common/nvfp4.h) with rows in the encoding i16b32: the blocks'
// exact integers come from linear_i16b32-inl.h.
#include "kernels/common/nvfp4.h"
#include "kernels/cpu/product_kernels.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_nvfp4.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/linear_i16b32-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Weights of kLanes outputs.
class Nvfp4Weights {
 public:
  static constexpr bool kMin = false;
  static constexpr bool kHalves = true;
  static constexpr int32_t kZero = 0;

  struct Block {
    VU codes[4];
    VF scale, second;  // of elements 0..15 and 16..31
  };

  Nvfp4Weights(const uint8_t* group, uint32_t lane) : group_(group), lane_(lane) {}

  HWY_INLINE VF matrix_scale() const { return load_floats(group_ + 4 * lane_); }

  HWY_INLINE Block load(uint32_t b) const {
    const uint8_t* scales = group_ + nvfp4_scale_offset(lane_, 2 * uint64_t{b});
    const uint8_t* codes = group_ + nvfp4_word_offset(lane_, b, 0);
    if (kLanes == kRowGroup || lane_ == 0) {  // once a group: its other lanes find it in a cache
      unrolled<4>([&](auto i) ATLAS_INLINE_LAMBDA {
        hwy::Prefetch(codes + kPrefetchBytes + 4 * kRowGroup * i);
      });
      if (b % 2 == 0) hwy::Prefetch(scales + kPrefetchBytes);
    }
    Block block;
    unrolled<4>([&](auto i) ATLAS_INLINE_LAMBDA {
      block.codes[i] = load_words(codes + 4 * kRowGroup * i);
    });
    block.scale = load_e4m3s(scales);
    block.second = load_e4m3s(scales + kRowGroup);
    return block;
  }

  /// Twice the numbers of elements 4 kWord ..+3, a signed byte each.
  template <uint32_t kWord>
  static HWY_INLINE VU bytes(const Block& block) {
    const VU word = block.codes[kWord % 4];
    const VU nibbles =
        hn::And(kWord < 4 ? word : hn::ShiftRight<4>(word), hn::Set(U32(), 0x0f0f0f0f));
#if HWY_TARGET == HWY_SCALAR
    uint32_t result = 0;
    for (uint32_t at = 0; at < 32; at += 8) {
      const int8_t twice = kNvfp4Twice[hn::GetLane(nibbles) >> at & 15];
      result |= uint32_t{static_cast<uint8_t>(twice)} << at;
    }
    return hn::Set(U32(), result);
#else
    const hn::Repartition<int8_t, U32> d8;
    return hn::BitCast(
        U32(), hn::TableLookupBytes(hn::LoadDup128(d8, kNvfp4Twice), hn::BitCast(d8, nibbles)));
#endif
  }
  /// Two elements as 16-bit numbers, 512 times their values: a byte's sign is then in its place.
  template <int kByte>
  static HWY_INLINE VU pair(VU bytes) {
    if constexpr (kByte == 1) {
      return hn::And(bytes, hn::Set(U32(), 0xff00ff00));
    } else {
#if HWY_TARGET == HWY_SCALAR
      return hn::Set(U32(), hn::GetLane(bytes) << 8 & 0xff00ff00);
#else
      const hn::Repartition<uint16_t, U32> d16;
      return hn::BitCast(U32(), hn::ShiftLeft<8>(hn::BitCast(d16, bytes)));
#endif
    }
  }

 private:
  /// Scales without a sign. The seven bits in place are a float32 that is 2^120 too small,
  /// subnormal ones included, so the product is exact.
  static HWY_INLINE VF load_e4m3s(const uint8_t* from) {
    const hn::Rebind<uint8_t, U32> d8;
    const VU bits = hn::ShiftLeft<20>(hn::PromoteTo(U32(), hn::LoadU(d8, from)));
    return hn::Mul(hn::BitCast(F32(), bits), hn::Set(F32(), 0x1p120f));
  }

  const uint8_t* group_;
  uint32_t lane_;
};

/// kLanes outputs of a product: what linear_walk-inl.h runs over rows.
class Nvfp4Product {
 public:
  Nvfp4Product(const uint8_t* group, uint32_t lane, uint32_t k)
      : weights_(group, lane), blocks_(static_cast<uint32_t>(i16b32_blocks(k))) {}

  static constexpr uint64_t group_bytes(uint64_t k) { return nvfp4_group_bytes(k); }

  template <uint32_t kRows>
  HWY_INLINE void tile(const uint8_t* const (&x)[kRows], VF (&sums)[kRows]) const {
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Zero(F32()); });
    for (uint32_t b = 0; b < blocks_; ++b) {
      add_block<Nvfp4Weights, kRows>(weights_.load(b), x, size_t{b} * sizeof(I16B32Block), sums);
    }
    const VF scale = weights_.matrix_scale();
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Mul(sums[r], scale); });
  }

 private:
  Nvfp4Weights weights_;
  uint32_t blocks_;
};

ATLAS_CPU_PRODUCT(linear_nvfp4, grouped_nvfp4, Nvfp4Product)

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
ATLAS_CPU_PRODUCT_KERNELS(linear_nvfp4, grouped_nvfp4)

}  // namespace atlas::kernels::cpu
#endif
