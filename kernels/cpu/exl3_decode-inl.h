// Decodes strips of EXL3 weights (kernels/common/exl3.h). A lane is a segment of a tile: every
// window of 16 bits comes from the same place of all lanes' words, so that a state costs a shift
// and a mask, and becomes one weight of kLanes outputs.
#if defined(ATLAS_CPU_EXL3_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_EXL3_DECODE_INL_H_
#undef ATLAS_CPU_EXL3_DECODE_INL_H_
#else
#define ATLAS_CPU_EXL3_DECODE_INL_H_
#endif

#include <hwy/cache_control.h>

#include <cstddef>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/exl3.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Lanes of a strip's vectors.
constexpr uint32_t kStripLanes = 16;
constexpr size_t kVectorBytes = kStripLanes * sizeof(uint32_t);

/// For each lane the one before it in its tile, whose segment the ring has before this one.
struct LaneBefore {
  alignas(64) int32_t at[kLanes];
  constexpr LaneBefore() : at() {
    for (uint32_t i = 0; i < kLanes; ++i) at[i] = static_cast<int32_t>((i & 8) | ((i - 1) & 7));
  }
};
inline constexpr LaneBefore kLaneBefore;

/// The words at `vector` of the lanes before lanes lane .. lane + kLanes - 1; `own` are their own.
HWY_INLINE VU words_before(const uint8_t* vector, uint32_t lane, VU own) {
  if constexpr (kLanes >= 8) {
    return hn::TableLookupLanes(own, hn::SetTableIndices(U32(), kLaneBefore.at));
  }
  HWY_ALIGN uint32_t words[kLanes];
  for (uint32_t i = 0; i < kLanes; ++i) {
    const uint32_t from = ((lane + i) & 8) | ((lane + i - 1) & 7);
    std::memcpy(words + i, vector + sizeof(uint32_t) * from, sizeof(uint32_t));
  }
  return hn::Load(U32(), words);
}

/// (high : low) << kBits, its upper 32 bits; kBits is 1 to 31.
template <int kBits>
HWY_INLINE VU shifted_in(VU high, VU low) {
#if HWY_TARGET == HWY_AVX3_DL
  return VU{_mm512_shldi_epi32(high.raw, low.raw, kBits)};
#else
  return hn::Or(hn::ShiftLeft<kBits>(high), hn::ShiftRight<32 - kBits>(low));
#endif
}

/// One tile row of kLanes lanes: the 16 bits before their segments in word 0, then their words.
template <uint32_t kUnits>
class TileWords {
 public:
  static constexpr uint32_t kWords = (kUnits + 1) / 2;

  HWY_INLINE TileWords(const uint8_t* strip, uint32_t lane, uint32_t tile) {
    if constexpr (kUnits % 2 == 0) {
      const uint8_t* at = strip + size_t{tile} * kWords * kVectorBytes;
      load<0, kWords>(at, lane);
      words_[0] = words_before(at + (kWords - 1) * kVectorBytes, lane, words_[kWords]);
    } else {
      const uint8_t* at = strip + size_t{tile / 2} * kUnits * kVectorBytes;
      const uint8_t* shared = at + (kWords - 1) * kVectorBytes;
      const VU own = load_words(shared + sizeof(uint32_t) * lane);
      const VU before = words_before(shared, lane, own);
      if (tile % 2 == 0) {
        load<0, kWords - 1>(at, lane);
        words_[kWords] = own;
        words_[0] = hn::ShiftRight<16>(before);
      } else {
        load<0, kWords - 1>(shared + kVectorBytes, lane);
        words_[kWords] = hn::ShiftLeft<16>(own);
        words_[0] = before;
      }
    }
  }

  /// States of weight kWeight (0..31) of each segment.
  template <uint32_t kWeight>
  HWY_INLINE VU states() const {
    constexpr uint32_t kEnd = 32 + exl3_end(kUnits, kWeight);  // counted from word 0
    constexpr uint32_t kWord = (kEnd - 1) / 32;
    constexpr int kUsed = kEnd - 32 * kWord;  // bits of that word, 1 to 32
    if constexpr (kUsed == 16) return hn::ShiftRight<16>(words_[kWord]);
    VU window;
    if constexpr (kUsed == 32) {
      window = words_[kWord];
    } else if constexpr (kUsed > 16) {
      window = hn::ShiftRight<32 - kUsed>(words_[kWord]);
    } else {
      window = shifted_in<kUsed>(words_[kWord - 1], words_[kWord]);
    }
    return hn::And(window, hn::Set(U32(), 0xffff));
  }

 private:
  template <uint32_t kFirst, uint32_t kCount>
  HWY_INLINE void load(const uint8_t* at, uint32_t lane) {
    unrolled<kCount>([&](auto i) ATLAS_INLINE_LAMBDA {
      const uint8_t* from = at + i * kVectorBytes;
      if (lane == 0) hwy::Prefetch(from + kPrefetchBytes);
      words_[1 + kFirst + i] = load_words(from + sizeof(uint32_t) * lane);
    });
  }

  VU words_[kWords + 1];
};

/// The sums of the four bytes of each word, as floats, plus 2^23.
HWY_INLINE VF byte_sums(VU words) {
  const VU magic = hn::Set(U32(), 0x4b000000);
#if ATLAS_VNNI
  const VU ones = hn::Set(U32(), 0x01010101);
  return hn::BitCast(F32(), VI{_mm512_dpbusd_epi32(magic.raw, words.raw, ones.raw)});
#elif HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(words.raw, _mm512_set1_epi8(1));
  const VU sums{_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))};
  return hn::BitCast(F32(), hn::Or(sums, magic));
#elif HWY_TARGET == HWY_AVX2
  const __m256i pairs = _mm256_maddubs_epi16(words.raw, _mm256_set1_epi8(1));
  const VU sums{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))};
  return hn::BitCast(F32(), hn::Or(sums, magic));
#else
  const VU bytes = hn::Set(U32(), 0x00ff00ff);
  const VU pairs = hn::Add(hn::And(words, bytes), hn::And(hn::ShiftRight<8>(words), bytes));
  const VU sums = hn::And(hn::Add(pairs, hn::ShiftRight<16>(pairs)), hn::Set(U32(), 0xffff));
  return hn::BitCast(F32(), hn::Or(sums, magic));
#endif
}

/// Nearest float16 of each float, ties to even, for codebook values: the part of v that v * 8193
/// rounds away. That this equals exl3_round for every state is a test's to show.
HWY_INLINE VF rounded(VF v) {
  const VF large = hn::Mul(v, hn::Set(F32(), 8193.0f));
  return hn::Sub(large, hn::Sub(large, v));
}

/// What exl3_value gives for each state.
template <Exl3Codebook kCodebook>
HWY_INLINE VF values(VU states) {
  if constexpr (kCodebook == Exl3Codebook::kMul1) {
    const VF sums = byte_sums(hn::Mul(states, hn::Set(U32(), kExl3Mul1)));
    // (2^23 + sum) * 1774 / 2^18 less what makes it (1774 sum - 905216) / 2^18, which is exact.
    return rounded(fma(sums, hn::Set(F32(), 1774 * 0x1p-18f), hn::Set(F32(), -56771.453125f)));
  } else {
    constexpr bool kMcg = kCodebook == Exl3Codebook::kMcg;
    VU u = hn::Mul(states, hn::Set(U32(), kMcg ? kExl3Mcg : 89226354u));
    if constexpr (!kMcg) u = hn::Add(u, hn::Set(U32(), 64248484u));
    // A half keeps its sign, two bits of its exponent and its fraction, and the other bits of the
    // exponent are 011: as a float32 the kept bits stand 3 places lower and the others are 0111 11.
    const VU mask = hn::Set(U32(), 0x81ffe000);
    const VU flip = hn::Set(U32(), 0x3e000000u ^ 0x0b60u << 13);
    const auto half_of = [&](VU high) ATLAS_INLINE_LAMBDA {
      const VU at = hn::BitCast(U32(), hn::ShiftRight<3>(hn::BitCast(I32(), high)));
      return hn::BitCast(F32(), hn::Xor(hn::And(at, mask), flip));
    };
    return rounded(hn::Add(half_of(hn::ShiftLeft<16>(u)), half_of(u)));
  }
}

/// Outputs of a strip: sums in their order, two vectors of kLanes.
struct LanePair {
  VF v[2];
};

/// Adds tiles [tile, tile + 8), one segment of the contract, for one row.
template <Exl3Codebook kCodebook, uint32_t kUnits>
HWY_NOINLINE void add_one_row(const uint8_t* strip, uint32_t lane, uint32_t tile, const float* x,
                              LanePair& total) {
  VF sums[2] = {hn::Zero(F32()), hn::Zero(F32())};
  for (uint32_t i = 0; i < 8; ++i) {
    const TileWords<kUnits> words(strip, lane, tile + i);
    const float* inputs = x + kExl3Tile * i;
    unrolled<32>([&](auto p) ATLAS_INLINE_LAMBDA {
      constexpr uint32_t kHalf = p >> 2 & 1;
      const VF w = values<kCodebook>(words.template states<p>());
      sums[kHalf] = fma(w, hn::Set(F32(), inputs[exl3_row(p)]), sums[kHalf]);
    });
  }
  for (int h = 0; h < 2; ++h) total.v[h] = hn::Add(total.v[h], sums[h]);
}

/// 128 inputs of a strip's kLanes lanes: summand s of tile i at ((16 i + s) 2 + half) kLanes.
struct DecodedBlock {
  alignas(64) float floats[kExl3Block * 2 * kLanes];
};

template <Exl3Codebook kCodebook, uint32_t kUnits>
HWY_NOINLINE void decode_block(const uint8_t* strip, uint32_t lane, uint32_t tile,
                               DecodedBlock& block) {
  for (uint32_t i = 0; i < 8; ++i) {
    const TileWords<kUnits> words(strip, lane, tile + i);
    float* to = block.floats + size_t{i} * kExl3Tile * 2 * kLanes;
    unrolled<32>([&](auto p) ATLAS_INLINE_LAMBDA {
      constexpr uint32_t kPlace = ((p >> 3) * 4 + (p & 3)) * 2 + (p >> 2 & 1);
      hn::Store(values<kCodebook>(words.template states<p>()), F32(), to + kPlace * kLanes);
    });
  }
}

/// The two ways to read a strip, for one number of bits.
struct StripReader {
  void (*add_one_row)(const uint8_t* strip, uint32_t lane, uint32_t tile, const float* x,
                      LanePair& total);
  void (*decode)(const uint8_t* strip, uint32_t lane, uint32_t tile, DecodedBlock& block);
};

template <Exl3Codebook kCodebook, uint32_t kUnits>
constexpr StripReader strip_reader_of() {
  if constexpr (exl3_has(kCodebook, kUnits)) {
    return {add_one_row<kCodebook, kUnits>, decode_block<kCodebook, kUnits>};
  } else {
    return {nullptr, nullptr};
  }
}

/// `units` is one that the codebook has; the plugin plans no others.
template <Exl3Codebook kCodebook>
StripReader strip_reader(uint32_t units) {
  StripReader reader{};
  unrolled<17>([&](auto each) ATLAS_INLINE_LAMBDA {
    if (each == units) reader = strip_reader_of<kCodebook, each>();
  });
  return reader;
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_EXL3_DECODE_INL_H_
