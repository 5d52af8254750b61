// Trellis weights in registers: a lane's words of the resident layout (exl3_gpu.h), the windows of
// 16 bits in them, and what a codebook makes of two windows: a word of two f16.
//
// Instructions of a lane a weight, as PTX has them (MUL1; the other codebooks: one more, as and-xor
// takes the byte sum's place and 1.5 take that of the pair's 1):
//   window      2 (shift of two words, mask); with 1, 2, 4 and 8 bits 1.4: one shift has two
//   windows,
//               in its halves
//   product     1 multiplication of 32 bits
//   byte sum    1: dp4a onto the bits of f16 1024, or for a pair's second another unit's
//   pair        0.5 to put two sums into a word, 0.5 packed f16 fma
// so 4.4 or 5.0 a weight, and 0.03 for the neighbour's bits.
#pragma once

#include "kernels/common/device/byte_sums.h"
#include "kernels/common/device/device.h"
#include "kernels/common/device/logic.h"
#include "kernels/common/exl3_gpu.h"

namespace atlas::kernels {

#if defined(ATLAS_HAS_MMA_SYNC)
inline constexpr Exl3Lanes kExl3Lanes = Exl3Lanes::kMmaSync;
#else
inline constexpr Exl3Lanes kExl3Lanes = Exl3Lanes::kWmma;
#endif
inline constexpr Exl3Shape kExl3Shape = exl3_shape(kExl3Lanes);

/// A lane's words of a pair of segments.
template <uint32_t kUnits>
struct Exl3Words {
  uint32_t w[kUnits];
};

/// The lane among those that hold different words, and the lane with the segment before its own.
ATLAS_DEVICE uint32_t exl3_lane() { return device::lane_index() % kExl3Shape.lanes; }
ATLAS_DEVICE uint32_t exl3_lane_before() {
  const uint32_t lane = device::lane_index();
  if (kExl3Lanes == Exl3Lanes::kMmaSync) return (lane + 28) % 32;
  return (lane & ~7u) | ((lane + 7) & 7u);
}

/// Reads a lane's words, `pair` being that of all lanes, by Load(from, words, count of words).
template <uint32_t kUnits, typename Load>
ATLAS_DEVICE void exl3_each_read(const Load& read) {
  constexpr uint32_t kLanes = kExl3Shape.lanes;
  const uint32_t lane = exl3_lane();
  ATLAS_UNROLL
  for (uint32_t word = 0; word < kUnits;) {
    const uint32_t count = kUnits - word >= 4 ? 4 : (kUnits - word >= 2 ? 2 : 1);
    const uint32_t begin = exl3_word_offset(kLanes, kUnits, 0, word);
    read(begin + lane * 4 * count, word, count);
    word += count;
  }
}

/// Words from memory that is read once (global), or from the ring in shared memory.
template <uint32_t kUnits, bool kGlobal>
ATLAS_DEVICE Exl3Words<kUnits> exl3_read(const uint8_t* pair) {
  using namespace device;
  Exl3Words<kUnits> words;
  exl3_each_read<kUnits>([&](uint32_t offset, uint32_t word, uint32_t count) {
    const uint8_t* from = pair + offset;
    if (count == 4) {
      const Words4 four = kGlobal ? load_once(from) : load_as<Words4>(from);
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) words.w[word + i] = four.w[i];
    } else if (count == 2) {
      const Words2 two = load_as<Words2>(from);
      words.w[word] = two.w[0];
      words.w[word + 1] = two.w[1];
    } else {
      words.w[word] = load_as<uint32_t>(from);
    }
  });
  return words;
}

/// Which pairs: `count` neighbours, `turns` times, with `apart` pairs between.
struct Exl3Pairs {
  uint32_t count, turns, apart;
};

/// Pairs of a group or of several, in order. Who reads one has waited for its group of copies:
/// begin() starts a copy to shared memory and closes no group, as other copies may belong to it.
#if defined(ATLAS_HAS_MMA_SYNC)
template <uint32_t kUnits, uint32_t kSlots, device::Reads kReads>
class Exl3Stream {
 public:
  Exl3Stream() = default;
  /// `ring`: kSlots pairs, of this warp alone. A lane reads what it has copied itself. All lanes of
  /// the warp take part.
  ATLAS_DEVICE Exl3Stream(const uint8_t* from, const Exl3Pairs& pairs, uint8_t* ring)
      : from_(from),
        pairs_(pairs),
        left_(pairs.count),
        ring_(kReads == device::Reads::kOnce ? device::lane_place(ring) : ring) {}
  ATLAS_DEVICE void begin() {
    if (left_ == 0) {
      if (pairs_.turns <= 1) return;
      --pairs_.turns;
      left_ = pairs_.count;
      from_ += uint64_t{pairs_.apart} * kBytes;
    }
    exl3_each_read<kUnits>([&](uint32_t offset, uint32_t, uint32_t count) {
      uint8_t* to = ring_ + begun_ * kBytes + offset;
      if (count == 4) {
        device::async_copy<16, kReads>(to, from_ + offset);
      } else if (count == 2) {
        device::async_copy<8, kReads>(to, from_ + offset);
      } else {
        device::async_copy<4, kReads>(to, from_ + offset);
      }
    });
    from_ += kBytes;
    --left_;
    begun_ = (begun_ + 1) % kSlots;
  }
  ATLAS_DEVICE Exl3Words<kUnits> read() {
    const Exl3Words<kUnits> words = exl3_read<kUnits, false>(ring_ + read_ * kBytes);
    read_ = (read_ + 1) % kSlots;
    return words;
  }

 private:
  static constexpr uint32_t kBytes = exl3_pair_bytes(kExl3Lanes, kUnits);
  const uint8_t* from_ = nullptr;
  Exl3Pairs pairs_{};
  uint32_t left_ = 0;
  uint8_t* ring_ = nullptr;
  uint32_t begun_ = 0, read_ = 0;
};
#else
/// By way of registers, one ahead.
template <uint32_t kUnits, uint32_t kSlots, device::Reads kReads>
class Exl3Stream {
 public:
  Exl3Stream() = default;
  ATLAS_DEVICE Exl3Stream(const uint8_t* from, const Exl3Pairs& pairs, uint8_t*)
      : from_(from), pairs_(pairs), left_(pairs.count) {
    load();
  }
  ATLAS_DEVICE void begin() {}
  ATLAS_DEVICE Exl3Words<kUnits> read() {
    const Exl3Words<kUnits> words = ahead_;
    load();
    return words;
  }

 private:
  ATLAS_DEVICE void load() {
    if (left_ == 0) {
      if (pairs_.turns <= 1) return;
      --pairs_.turns;
      left_ = pairs_.count;
      from_ += uint64_t{pairs_.apart} * exl3_pair_bytes(kExl3Lanes, kUnits);
    }
    ahead_ = exl3_read<kUnits, true>(from_);
    from_ += exl3_pair_bytes(kExl3Lanes, kUnits);
    --left_;
  }
  const uint8_t* from_ = nullptr;
  Exl3Pairs pairs_{};
  uint32_t left_ = 0;
  Exl3Words<kUnits> ahead_{};
};
#endif

/// One segment in registers: the bits before it (in the low half of a word), then its own from the
/// highest bit of word 1 on.
template <uint32_t kUnits>
struct Exl3Segment {
  static constexpr uint32_t kWords = (kUnits + 1) / 2;
  uint32_t w[1 + kWords];
};

/// Calls use(half, segments) for both segments of a pair, of kGroups groups of outputs. All lanes
/// of the warp take part. `kTwice`: with code of its own for each, else one code for both, which
/// costs 3 % more instructions.
template <bool kTwice, uint32_t kUnits, uint32_t kGroups, typename Use>
ATLAS_DEVICE void exl3_each_segment(const Exl3Words<kUnits> (&words)[kGroups], const Use& use) {
  constexpr uint32_t kHalf = kUnits / 2;
  constexpr bool kOdd = kUnits % 2 != 0;
  const uint32_t before = exl3_lane_before();
  // The last words of the segments before; odd numbers of units have both in one.
  uint32_t first[kGroups], second[kGroups];
  ATLAS_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t last = device::shuffle(words[g].w[kOdd ? kHalf : kHalf - 1], before);
    first[g] = kOdd ? last >> 16 : last;
    second[g] = kOdd ? last : device::shuffle(words[g].w[kUnits - 1], before);
  }
  const auto one = [&](uint32_t half) {
    Exl3Segment<kUnits> segments[kGroups];
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) {
      const uint32_t* w = words[g].w;
      segments[g].w[0] = half != 0 ? second[g] : first[g];
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kHalf; ++i) {
        segments[g].w[1 + i] = half != 0 ? w[kHalf + (kOdd ? 1 : 0) + i] : w[i];
      }
      if constexpr (kOdd) segments[g].w[1 + kHalf] = half != 0 ? w[kHalf] << 16 : w[kHalf];
    }
    use(half, segments);
  };
  if constexpr (kTwice) {
    one(0);
    one(1);
  } else {
    ATLAS_ROLLED
    for (uint32_t half = 0; half < 2; ++half) one(half);
  }
}

/// Formats that are met most have code for both segments.
template <Exl3Codebook kCodebook, uint32_t kUnits>
inline constexpr bool kExl3Hot = kCodebook != Exl3Codebook::k3Inst &&
                                 (kUnits == 6 || kUnits == 8 || kUnits == 12);

/// 32 bits of a segment that end with bit `end` (exclusive, 1 .. 16 * units).
template <uint32_t kUnits>
ATLAS_DEVICE uint32_t exl3_bits(const Exl3Segment<kUnits>& segment, uint32_t end) {
  const uint32_t word = (end + 31) / 32, shift = (32 - end % 32) % 32;
  if (shift == 0) return segment.w[word];
  return device::funnel_right(segment.w[word - 1], segment.w[word], shift);
}

/// Window `i` (0..31) of a segment.
template <uint32_t kUnits>
ATLAS_DEVICE uint32_t exl3_window(const Exl3Segment<kUnits>& segment, uint32_t i) {
  const uint32_t end = exl3_end(kUnits, i);
  if (kUnits == 2 || kUnits == 4 || kUnits == 8 || kUnits == 16) {
    // Windows that lie 16 bits apart are the halves of one word.
    constexpr uint32_t kApart = 32 / kUnits;
    if (i / kApart % 2 == 0) return exl3_bits(segment, end + 16) >> 16;
  } else if (end % 32 == 16) {
    return segment.w[(end + 31) / 32] >> 16;
  }
  return exl3_bits(segment, end) & 0xffffu;
}

/// Two states as a word of two f16.
template <Exl3Codebook kCodebook>
ATLAS_DEVICE uint32_t exl3_pair(uint32_t first, uint32_t second) {
  using namespace device;
  if constexpr (kCodebook == Exl3Codebook::kMul1) {
    // The bits of f16 1024 + sum are 0x6400 + sum.
    const uint32_t low = sum_of_bytes(first * kExl3Mul1, 0x64006400u);
    const uint32_t high = sum_of_bytes_beside(second * kExl3Mul1);
    return f16_fma((high << 16) + low, 0x1eee1eeeu, 0xc931c931u);
  } else {
    const auto product = [](uint32_t state) {
      const uint32_t u =
          kCodebook == Exl3Codebook::kMcg ? state * kExl3Mcg : state * 89226354u + 64248484u;
      return and_xor(u, 0x8fff8fffu, 0x3b603b60u);
    };
    return f16_add_halves(product(first), product(second));
  }
}

// ---- Products of a step ----

/// What lanes have of the encoded inputs of one step: 8 words of one row.
struct Exl3Inputs {
  device::Words4 half[2];
};

/// Sums of one lane over a group's outputs and a tile of rows.
#if defined(ATLAS_HAS_MMA_SYNC)
inline constexpr uint32_t kExl3Cells = 4;
#else
inline constexpr uint32_t kExl3Cells = 16;
#endif
struct Exl3Sums {
  float r[kExl3Cells];
};

/// Output of the group (row) and row of the tile (column) of cell `i`.
ATLAS_DEVICE device::Cell exl3_cell(uint32_t lane, uint32_t i) {
#if defined(ATLAS_HAS_MMA_SYNC)
  return device::mma_cell(lane, i);
#else
  const device::Cell cell = device::wmma_cell(lane, i % 8);
  return {cell.row / 8 * 16 + cell.row % 8 + i / 8 * 8, cell.column};
#endif
}
/// The row of the tile that a lane reads the inputs of, and which tile of four.
ATLAS_DEVICE uint32_t exl3_input_row() {
  const uint32_t lane = device::lane_index();
  return kExl3Lanes == Exl3Lanes::kMmaSync ? lane / 4 : lane % 16;
}
ATLAS_DEVICE uint32_t exl3_input_tile() {
  return kExl3Lanes == Exl3Lanes::kMmaSync ? device::lane_index() % 4 : 0;
}

/// The 32 weights of a lane's segment: word r has windows 2 r and 2 r + 1.
struct Exl3Weights {
  uint32_t pair[16];
};
template <Exl3Codebook kCodebook, uint32_t kUnits>
ATLAS_DEVICE Exl3Weights exl3_weights(const Exl3Segment<kUnits>& segment) {
  Exl3Weights weights;
  ATLAS_UNROLL
  for (uint32_t r = 0; r < 16; ++r) {
    weights.pair[r] =
        exl3_pair<kCodebook>(exl3_window(segment, 2 * r), exl3_window(segment, 2 * r + 1));
  }
  return weights;
}

/// sums += weights * the inputs of a step, 64 or 16 of k.
ATLAS_DEVICE void exl3_multiply(Exl3Sums& sums, const Exl3Weights& weights,
                                const Exl3Inputs& inputs) {
#if defined(ATLAS_HAS_MMA_SYNC)
  device::MmaSums part{{sums.r[0], sums.r[1], sums.r[2], sums.r[3]}};
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t* pair = weights.pair + 4 * i;
    device::mma_f16(part, {{pair[0], pair[2], pair[1], pair[3]}},
                    {{inputs.half[i / 2].w[i % 2 * 2], inputs.half[i / 2].w[i % 2 * 2 + 1]}});
  }
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) sums.r[i] = part.r[i];
#else
  device::WmmaHalves b;
  ATLAS_UNROLL
  for (uint32_t p = 0; p < 8; ++p) b.r[p] = inputs.half[p / 4].w[p % 4];
  ATLAS_UNROLL
  for (uint32_t column = 0; column < 2; ++column) {
    device::WmmaHalves a;
    device::WmmaSums part;
    ATLAS_UNROLL
    for (uint32_t p = 0; p < 8; ++p) {
      a.r[p] = weights.pair[4 * (p % 4) + 2 * column + p / 4];
      part.r[p] = sums.r[8 * column + p];
    }
    device::wmma_f16(part, a, b);
    ATLAS_UNROLL
    for (uint32_t p = 0; p < 8; ++p) sums.r[8 * column + p] = part.r[p];
  }
#endif
}

}  // namespace atlas::kernels
