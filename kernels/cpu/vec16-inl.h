// Sixteen float32 lanes whatever the instruction set: one register or several. What a lane
// computes, and the order in which lanes are reduced, is the same everywhere. Per target; see
// Highway.
#if defined(ATLAS_KERNELS_CPU_VEC16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_KERNELS_CPU_VEC16_INL_H_
#undef ATLAS_KERNELS_CPU_VEC16_INL_H_
#else
#define ATLAS_KERNELS_CPU_VEC16_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using VF32 = hn::Vec<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VU32 = hn::Vec<U32>;

inline constexpr size_t kRegisterLanes = hn::MaxLanes(F32());
inline constexpr size_t kRegisters = 16 / kRegisterLanes;
using RegisterIndices = std::make_index_sequence<kRegisters>;

/// Sixteen lanes; lane i is lane i % kRegisterLanes of register i / kRegisterLanes.
struct F16 {
  VF32 r[kRegisters];
};
/// Sixteen lanes of which each is on or off.
struct M16 {
  hn::Mask<F32> r[kRegisters];
};

inline constexpr RegisterIndices kAll{};

// Each operation is one of Highway's, applied to every register; packs instead of loops, so that no
// compiler setting decides whether the registers stay registers.
#define ATLAS_LANES_2(Result, Operand, Name)                                              \
  template <size_t... I>                                                                  \
  HWY_INLINE Result Name(const Operand& a, const Operand& b, std::index_sequence<I...>) { \
    return {{hn::Name(a.r[I], b.r[I])...}};                                               \
  }                                                                                       \
  HWY_INLINE Result Name(const Operand& a, const Operand& b) { return Name(a, b, kAll); }
#define ATLAS_LANES_3(A, Name, Operation)                                                  \
  template <size_t... I>                                                                   \
  HWY_INLINE F16 Name(const A& a, const F16& b, const F16& c, std::index_sequence<I...>) { \
    return {{hn::Operation(a.r[I], b.r[I], c.r[I])...}};                                   \
  }                                                                                        \
  HWY_INLINE F16 Name(const A& a, const F16& b, const F16& c) { return Name(a, b, c, kAll); }
ATLAS_LANES_2(F16, F16, Add)
ATLAS_LANES_2(F16, F16, Sub)
ATLAS_LANES_2(F16, F16, Mul)
ATLAS_LANES_2(F16, F16, Div)
ATLAS_LANES_2(F16, F16, Max)
ATLAS_LANES_2(M16, F16, Lt)
ATLAS_LANES_2(M16, F16, Ge)
ATLAS_LANES_2(M16, F16, Eq)
ATLAS_LANES_2(M16, M16, And)
/// a * b + c, rounded once where the instruction set can.
ATLAS_LANES_3(F16, MulAdd, MulAdd)
/// Lanes of b where the mask a is on, of c elsewhere.
ATLAS_LANES_3(M16, Select, IfThenElse)
#undef ATLAS_LANES_2
#undef ATLAS_LANES_3

template <size_t... I>
HWY_INLINE F16 Load16(const float* from, std::index_sequence<I...>) {
  return {{hn::LoadU(F32(), from + I * kRegisterLanes)...}};
}
HWY_INLINE F16 Load16(const float* from) { return Load16(from, kAll); }

template <size_t... I>
HWY_INLINE F16 Set16(float x, std::index_sequence<I...>) {
  return {{(static_cast<void>(I), hn::Set(F32(), x))...}};
}
HWY_INLINE F16 Set16(float x) { return Set16(x, kAll); }

template <size_t... I>
HWY_INLINE void Store16(const F16& v, float* to, std::index_sequence<I...>) {
  (hn::StoreU(v.r[I], F32(), to + I * kRegisterLanes), ...);
}
HWY_INLINE void Store16(const F16& v, float* to) { Store16(v, to, kAll); }

template <size_t... I>
HWY_INLINE bool AllTrue(const M16& m, std::index_sequence<I...>) {
  return (hn::AllTrue(F32(), m.r[I]) && ...);
}
HWY_INLINE bool AllTrue(const M16& m) { return AllTrue(m, kAll); }

template <size_t... I>
HWY_INLINE bool NoneTrue(const M16& m, std::index_sequence<I...>) {
  return (hn::AllFalse(F32(), m.r[I]) && ...);
}
HWY_INLINE bool NoneTrue(const M16& m) { return NoneTrue(m, kAll); }

template <size_t... I>
HWY_INLINE size_t CountTrue(const M16& m, std::index_sequence<I...>) {
  return (hn::CountTrue(F32(), m.r[I]) + ...);
}
HWY_INLINE size_t CountTrue(const M16& m) { return CountTrue(m, kAll); }

/// 0, 1, ..., 15.
HWY_INLINE F16 Iota16() {
  static constexpr float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return Load16(kLanes);
}

/// Loads `count` (at most 16) lanes; the rest are `fill`.
HWY_INLINE F16 LoadPart16(const float* from, size_t count, float fill) {
  float lanes[16];
  for (size_t i = 0; i < 16; ++i) lanes[i] = i < count ? from[i] : fill;
  return Load16(lanes);
}
HWY_INLINE void StorePart16(const F16& v, float* to, size_t count) {
  float lanes[16];
  Store16(v, lanes);
  for (size_t i = 0; i < count; ++i) to[i] = lanes[i];
}

/// Elements [i, i + 16) of an array of n; lanes past its end are `fill`, and are not stored.
HWY_INLINE F16 LoadUpTo(const float* from, size_t i, size_t n, float fill = 0.0f) {
  return n - i >= 16 ? Load16(from + i) : LoadPart16(from + i, n - i, fill);
}
HWY_INLINE void StoreUpTo(const F16& v, float* to, size_t i, size_t n) {
  if (n - i >= 16) {
    Store16(v, to + i);
  } else {
    StorePart16(v, to + i, n - i);
  }
}

/// Sum of the lanes, pairwise: 8 apart, then 4, 2, 1.
HWY_INLINE float SumPairwise(const F16& v) {
  float x[16];
  Store16(v, x);
  for (size_t i = 0; i < 8; ++i) x[i] += x[i + 8];
  for (size_t i = 0; i < 4; ++i) x[i] += x[i + 4];
  return (x[0] + x[2]) + (x[1] + x[3]);
}
/// Largest lane. Any order gives the same value; which NaN is kept, if any, is not defined.
HWY_INLINE float MaxLane(const F16& v) {
  float x[16];
  Store16(v, x);
  float m = x[0];
  for (size_t i = 1; i < 16; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
