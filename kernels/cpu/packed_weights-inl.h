// Blocks of the resident layout (kernels/common/packed.h) in registers: scales as floats, codes as
// bytes.
#if defined(ATLAS_CPU_PACKED_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_PACKED_WEIGHTS_INL_H_
#undef ATLAS_CPU_PACKED_WEIGHTS_INL_H_
#else
#define ATLAS_CPU_PACKED_WEIGHTS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <cstddef>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/packed.h"
#include "kernels/cpu/lanes-inl.h"

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
    if (kLanes == kRowGroup || lane_ == 0) {  // once a group: its other lanes find it in a cache
      unrolled<(kLayout.sub_bytes() + 63) / 64>(
          [&](auto i) ATLAS_INLINE_LAMBDA { hwy::Prefetch(sub + kPrefetchBytes + 64 * i); });
    }
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

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_PACKED_WEIGHTS_INL_H_
