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

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/i16b32.h"
#include "kernels/common/packed.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

constexpr uint32_t kWords = 8;  // of four codes in a block
/// Rows of a full tile: integer sums and float accumulators fill the registers.
constexpr uint32_t kTileRows = kLanes == 16 ? 8 : 4;

/// Weights of kLanes outputs in the resident layout.
template <PackedLayout kLayout>
class PackedWeights {
 public:
  static constexpr bool kMin = kLayout.has_min();
  static constexpr bool kHalves = kLayout.scales == PackedScales::kByteHalves;
  static constexpr uint32_t kSubs = kLayout.subs();
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

/// Where a tile's outputs go: rows of y at the first of kLanes outputs, `count` of which exist.
struct Outputs {
  float* y;
  size_t stride;
  uint32_t count;
  bool add;
};

template <class Weights, uint32_t kRows>
void product_tile(const Weights& weights, uint32_t blocks, const uint8_t* x, size_t x_stride,
                  const Outputs& out, uint32_t row) {
  VF sums[kRows];
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Zero(F32()); });
  x += row * x_stride;
  for (uint32_t u = 0; u < blocks / Weights::kSubs; ++u) {
    const typename Weights::Unit unit = weights.load_unit(u);
    for (uint32_t b = 0; b < Weights::kSubs; ++b, x += sizeof(I16B32Block)) {
      add_block<Weights, kRows>(weights.load(unit, b), x, x_stride, sums);
    }
  }
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    store_outputs(sums[r], out.y + (row + r) * out.stride, out.count, out.add);
  });
}

/// All rows in tiles: each tile walks k once, weights come from the nearest cache after the first.
template <class Weights>
void product_rows(const Weights& weights, uint32_t blocks, const uint8_t* x, size_t x_stride,
                  const Outputs& out, uint32_t rows) {
  uint32_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) {
    product_tile<Weights, kTileRows>(weights, blocks, x, x_stride, out, row);
  }
  if (kTileRows > 4 && row + 4 <= rows) {
    product_tile<Weights, 4>(weights, blocks, x, x_stride, out, row);
    row += 4;
  }
  if (row + 2 <= rows) {
    product_tile<Weights, 2>(weights, blocks, x, x_stride, out, row);
    row += 2;
  }
  if (row < rows) product_tile<Weights, 1>(weights, blocks, x, x_stride, out, row);
}

/// Tasks [begin, end) of a product: each walks all rows for its row groups of W.
template <PackedLayout kLayout>
void linear(const LinearParams& params, uint32_t begin, uint32_t end) {
  const uint32_t rows = *params.row_count;
  const uint32_t groups = (params.n + kRowGroup - 1) / kRowGroup;
  const uint32_t per_task = linear_groups_per_task(params.n);
  const uint32_t blocks = params.k / kI16B32Elements;
  const auto* x = static_cast<const uint8_t*>(params.x);
  const uint32_t last = std::min<uint64_t>(groups, uint64_t{end} * per_task);
  for (uint32_t group = begin * per_task; group < last; ++group) {
    const uint8_t* weight =
        static_cast<const uint8_t*>(params.weight) + group * kLayout.group_bytes(params.k);
    for (uint32_t lane = 0; lane < kRowGroup; lane += kLanes) {
      const uint32_t first = group * kRowGroup + lane;
      if (first >= params.n) break;
      const PackedWeights<kLayout> packed(weight, lane);
      const Outputs out{params.y + first, params.y_stride, params.n - first,
                        params.epilogue == ATLAS_EPILOGUE_ADD};
      product_rows(packed, blocks, x, params.x_row_bytes, out, rows);
    }
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LINEAR_I16B32_INL_H_
