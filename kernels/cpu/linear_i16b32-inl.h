// Products of block-quantized weights (kernels/common/packed.h) with rows in the encoding i16b32.
//
// A lane is an output, so nothing is summed across lanes. A block of 32 elements is an exact 32-bit
// integer per output and row; what is added to the float32 accumulator, and in which order, is the
// contract "i16b32" (kernels/common/linear.h). Few rows: codes are unpacked in registers, for up to
// four rows at once. Many rows: codes are unpacked once per block of rows into scratch, as 16-bit
// pairs, and tiles of eight rows run over them.
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
#include "kernels/common/packed.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

constexpr size_t kXCodes = offsetof(I16B32Block, code);
constexpr uint32_t kPairs = 16;  // of codes in a block
/// Rows of a tile over unpacked weights: sums and accumulators fill the registers.
constexpr uint32_t kTileRows = kLanes == 16 ? 8 : 4;

/// Weights of kLanes outputs in the resident layout.
template <PackedLayout kLayout>
class PackedWeights {
 public:
  static constexpr bool kMin = kLayout.has_min();
  static constexpr bool kHalves = kLayout.scales == PackedScales::kByteHalves;

  PackedWeights(const uint8_t* group, uint32_t lane) : group_(group), lane_(lane) {}

  struct Block {
    VU codes[kLayout.code_words()];
    VU high[kLayout.high_words() + 1];
    VF scale, second;  // second: the minimum, or the scale of elements 16..31
  };

  HWY_INLINE Block load(uint32_t b) const {
    const uint8_t* unit = group_ + b / kLayout.subs() * size_t{kLayout.unit_bytes()};
    const uint8_t* sub = unit + kLayout.head_bytes() + b % kLayout.subs() * kLayout.sub_bytes();
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
      block.scale = hn::Mul(load_f16s(unit + 2 * lane_), load_u8s(sub + lane_));
      block.second = hn::Neg(hn::Mul(load_f16s(unit + 32 + 2 * lane_), load_u8s(sub + 16 + lane_)));
    } else {
      const VF d = load_f16s(unit + 2 * lane_);
      block.scale = hn::Mul(d, load_i8s(sub + lane_));
      block.second = hn::Mul(d, load_i8s(sub + 16 + lane_));
    }
    return block;
  }

  /// The codes, less their zero, of the two elements at i16b32 positions 2P and 2P + 1.
  template <uint32_t P>
  static HWY_INLINE VU pair(const Block& block) {
    if constexpr (kLayout.codes == PackedCodes::kByte) {
      return halves_signed_byte<P % 2>(block.codes[P / 2]);
    } else {
      constexpr int kShift = 8 * (P % 2) + 4 * (P / 8);
      const VU nibbles = hn::And(hn::ShiftRight<kShift>(block.codes[P % 8 / 2]), mask(0x000f000f));
      return zeroed(with_high<P>(block, nibbles));
    }
  }

  /// Asks for what a later block() will read; any address may be asked for.
  HWY_INLINE void prefetch(uint32_t b) const {
    const uint8_t* at = group_ + size_t{b} * kLayout.sub_bytes() + kPrefetchBytes;
    unrolled<(kLayout.sub_bytes() + 63) / 64>(
        [&](auto i) ATLAS_INLINE_LAMBDA { hwy::Prefetch(at + 64 * i); });
  }

 private:
  static HWY_INLINE VU mask(uint32_t bits) { return hn::Set(U32(), bits); }
  static HWY_INLINE VU zeroed(VU codes) {
    if constexpr (kLayout.zero == 0) {
      return codes;
    } else {
      return halves_minus(codes, kLayout.zero);
    }
  }
  template <uint32_t P>
  static HWY_INLINE VU with_high(const Block& block, VU nibbles) {
    if constexpr (kLayout.high_words() == 0) {
      return nibbles;
    } else {
      constexpr bool kTwo = kLayout.high_words() == 2;
      constexpr int kAt = kTwo ? 2 * (P % 8) : P;  // where the pair's bits stand; they go to bit 4
      const VU word = block.high[kTwo ? P / 8 : 0];
      const VU bits = mask(kTwo ? 0x00300030 : 0x00100010);
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

/// Weights of kLanes outputs after unpacking: for each block 16 vectors of pairs, scale, second.
template <bool kHasMin, bool kHasHalves>
class UnpackedWeights {
 public:
  static constexpr bool kMin = kHasMin;
  static constexpr bool kHalves = kHasHalves;

  UnpackedWeights(const std::byte* scratch, uint32_t lane)
      : at_(reinterpret_cast<const uint8_t*>(scratch) + 4 * lane) {}

  struct Block {
    const uint8_t* at;
    VF scale, second;
  };
  HWY_INLINE Block load(uint32_t b) const {
    Block block;
    block.at = at_ + size_t{b} * kUnpackedBlockBytes;
    block.scale = load_floats(block.at + 64 * kPairs);
    if constexpr (kMin || kHalves) block.second = load_floats(block.at + 64 * (kPairs + 1));
    return block;
  }
  template <uint32_t P>
  static HWY_INLINE VU pair(const Block& block) {
    return load_words(block.at + 64 * P);
  }
  HWY_INLINE void prefetch(uint32_t) const {}

 private:
  const uint8_t* at_;
};

/// Sums of a block are kept in one part, or in two: of its first and its last 16 elements.
template <class Weights, uint32_t kRows>
constexpr uint32_t kParts = Weights::kHalves || kRows <= 2 ? 2 : 1;

/// Adds `count` blocks to the accumulators of kRows rows, as the contract orders it.
template <class Weights, uint32_t kRows>
HWY_INLINE void add_blocks(const Weights& weights, uint32_t count, const uint8_t* x,
                           size_t x_stride, VF (&sums)[kRows]) {
  constexpr uint32_t kSets = kParts<Weights, kRows>;
  for (uint32_t b = 0; b < count; ++b, x += sizeof(I16B32Block)) {
    weights.prefetch(b);
    const typename Weights::Block block = weights.load(b);
    VI dots[kSets * kRows];
    unrolled<kSets * kRows>([&](auto i) ATLAS_INLINE_LAMBDA { dots[i] = hn::Zero(I32()); });
    unrolled<kPairs>([&](auto p) ATLAS_INLINE_LAMBDA {
      const VU w = Weights::template pair<p>(block);
      constexpr uint32_t kSet = kSets == 2 ? p / 8 * kRows : 0;
      unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
        const VI pair = broadcast_word(x + r * x_stride + kXCodes + 4 * p);
        dots[kSet + r] = dot_halves(dots[kSet + r], w, pair);
      });
    });
    unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
      const uint8_t* row = x + r * x_stride;
      const VF x_scale = broadcast_float(row + offsetof(I16B32Block, scale));
      const VF scale = hn::Mul(block.scale, x_scale);
      const VI later = dots[(kSets - 1) * kRows + r];
      if constexpr (Weights::kHalves) {
        sums[r] = fma(scale, hn::ConvertTo(F32(), dots[r]), sums[r]);
        const VF second = hn::Mul(block.second, x_scale);
        sums[r] = fma(second, hn::ConvertTo(F32(), later), sums[r]);
      } else {
        const VI dot = kSets == 2 ? hn::Add(dots[r], later) : dots[r];
        sums[r] = fma(scale, hn::ConvertTo(F32(), dot), sums[r]);
      }
      if constexpr (Weights::kMin) {
        const VF x_sum = broadcast_float(row + offsetof(I16B32Block, sum));
        sums[r] = fma(block.second, x_sum, sums[r]);
      }
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
void direct_tile(const Weights& weights, uint32_t blocks, const uint8_t* x, size_t x_stride,
                 const Outputs& out, uint32_t row) {
  VF sums[kRows];
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { sums[r] = hn::Zero(F32()); });
  add_blocks<Weights, kRows>(weights, blocks, x + row * x_stride, x_stride, sums);
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    store_outputs(sums[r], out.y + (row + r) * out.stride, out.count, out.add);
  });
}

/// Few rows: each tile unpacks the weights for itself.
template <class Weights>
void direct_rows(const Weights& weights, uint32_t blocks, const uint8_t* x, size_t x_stride,
                 const Outputs& out, uint32_t rows) {
  uint32_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    direct_tile<Weights, 4>(weights, blocks, x, x_stride, out, row);
  }
  if (row + 2 <= rows) {
    direct_tile<Weights, 2>(weights, blocks, x, x_stride, out, row);
    row += 2;
  }
  if (row < rows) direct_tile<Weights, 1>(weights, blocks, x, x_stride, out, row);
}

/// Unpacks blocks [begin, end) of kLanes outputs to `scratch`.
template <class Weights>
void unpack_blocks(const Weights& weights, uint32_t lane, uint32_t begin, uint32_t end,
                   std::byte* scratch) {
  uint8_t* to = reinterpret_cast<uint8_t*>(scratch) + 4 * lane;
  for (uint32_t b = begin; b < end; ++b, to += kUnpackedBlockBytes) {
    weights.prefetch(b);
    const typename Weights::Block block = weights.load(b);
    unrolled<kPairs>([&](auto p) ATLAS_INLINE_LAMBDA {
      hn::StoreU(Weights::template pair<p>(block), U32(), reinterpret_cast<uint32_t*>(to + 64 * p));
    });
    hn::StoreU(block.scale, F32(), reinterpret_cast<float*>(to + 64 * kPairs));
    if constexpr (Weights::kMin || Weights::kHalves) {
      hn::StoreU(block.second, F32(), reinterpret_cast<float*>(to + 64 * (kPairs + 1)));
    }
  }
}

/// One chunk of unpacked blocks for one tile of rows; partial sums between chunks are in `partial`.
template <class Weights, uint32_t kRows>
HWY_INLINE void chunk_tile(const Weights& weights, uint32_t blocks, const uint8_t* x,
                           size_t x_stride, bool first, bool last, float* partial,
                           const Outputs& out, uint32_t row) {
  const F32 df;
  VF sums[kRows];
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    sums[r] = first ? hn::Zero(df) : hn::LoadU(df, partial + r * kRowGroup);
  });
  add_blocks<Weights, kRows>(weights, blocks, x + row * x_stride, x_stride, sums);
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    if (last) {
      store_outputs(sums[r], out.y + (row + r) * out.stride, out.count, out.add);
    } else {
      hn::StoreU(sums[r], df, partial + r * kRowGroup);
    }
  });
}

template <class Weights>
void chunk_rows(const Weights& weights, uint32_t blocks, const uint8_t* x, size_t x_stride,
                bool first, bool last, float* partial, const Outputs& out, uint32_t begin,
                uint32_t end) {
  uint32_t row = begin;
  const auto at = [&]() { return partial + size_t{row - begin} * kRowGroup; };
  for (; row + kTileRows <= end; row += kTileRows) {
    chunk_tile<Weights, kTileRows>(weights, blocks, x, x_stride, first, last, at(), out, row);
  }
  if (kTileRows > 4 && row + 4 <= end) {
    chunk_tile<Weights, 4>(weights, blocks, x, x_stride, first, last, at(), out, row);
    row += 4;
  }
  if (row + 2 <= end) {
    chunk_tile<Weights, 2>(weights, blocks, x, x_stride, first, last, at(), out, row);
    row += 2;
  }
  if (row < end) chunk_tile<Weights, 1>(weights, blocks, x, x_stride, first, last, at(), out, row);
}

/// Many rows: for each block of rows and each chunk of k, unpack (again only if there is more than
/// one chunk), then run the tiles.
template <class Packed>
void scratch_rows(const Packed& packed, uint32_t lane, uint32_t blocks, const uint8_t* x,
                  size_t x_stride, const Outputs& out, uint32_t rows, std::byte* scratch) {
  using Unpacked = UnpackedWeights<Packed::kMin, Packed::kHalves>;
  const Unpacked unpacked(scratch, lane);
  auto* partial = reinterpret_cast<float*>(scratch + kUnpackedBytes) + lane;
  for (uint32_t row = 0; row < rows; row += kRowBlock) {
    const uint32_t row_end = std::min(rows, row + kRowBlock);
    for (uint32_t b = 0; b < blocks; b += kChunkBlocks) {
      const uint32_t b_end = std::min(blocks, b + kChunkBlocks);
      if (row == 0 || blocks > kChunkBlocks) unpack_blocks(packed, lane, b, b_end, scratch);
      chunk_rows(unpacked, b_end - b, x + b * sizeof(I16B32Block), x_stride, b == 0,
                 b_end == blocks, partial, out, row, row_end);
    }
  }
}

/// Tasks [begin, end) of a product: each walks all rows for its row groups of W.
template <PackedLayout kLayout>
void linear(const LinearParams& params, uint32_t begin, uint32_t end, std::byte* scratch) {
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
      if (rows <= kDirectRows) {
        direct_rows(packed, blocks, x, params.x_row_bytes, out, rows);
      } else {
        scratch_rows(packed, lane, blocks, x, params.x_row_bytes, out, rows, scratch);
      }
    }
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LINEAR_I16B32_INL_H_
