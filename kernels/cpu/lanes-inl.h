// Vectors of at most 16 float32 lanes, and 32-bit lanes seen as two 16-bit halves, on every target.
// Included once for each target (Highway's foreach_target); all of it is inline.
#if defined(ATLAS_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_LANES_INL_H_
#undef ATLAS_CPU_LANES_INL_H_
#else
#define ATLAS_CPU_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// Highway 1.0.3 names AVX-VNNI where its target AVX3_DL checks for AVX512-VNNI; code that uses the
// latter stands between ATLAS_VNNI_BEGIN and ATLAS_VNNI_END, inside HWY_BEFORE/AFTER_NAMESPACE.
#undef ATLAS_VNNI
#undef ATLAS_VNNI_BEGIN
#undef ATLAS_VNNI_END
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#define ATLAS_VNNI 1
#define ATLAS_VNNI_BEGIN _Pragma("GCC push_options") _Pragma("GCC target(\"avx512vnni\")")
#define ATLAS_VNNI_END _Pragma("GCC pop_options")
#else
#define ATLAS_VNNI 0
#define ATLAS_VNNI_BEGIN
#define ATLAS_VNNI_END
#endif

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::VFromD<F32>;
using VI = hn::VFromD<I32>;
using VU = hn::VFromD<U32>;
#if HWY_TARGET == HWY_SCALAR
constexpr uint32_t kLanes = 1;
#else
constexpr uint32_t kLanes = HWY_MIN(HWY_MAX_BYTES / 4, 16);
#endif

/// body(0), ..., body(kCount - 1), the numbers being types: loops over registers must leave no
/// index behind, or the compiler keeps the arrays in memory.
template <class Body, uint32_t... kAt>
HWY_INLINE void unrolled(std::integer_sequence<uint32_t, kAt...>, const Body& body) {
  (body(std::integral_constant<uint32_t, kAt>()), ...);
}
template <uint32_t kCount, class Body>
HWY_INLINE void unrolled(const Body& body) {
  unrolled(std::make_integer_sequence<uint32_t, kCount>(), body);
}
/// Behind the parameters of a lambda that is such a body.
#undef ATLAS_INLINE_LAMBDA
#define ATLAS_INLINE_LAMBDA __attribute__((always_inline))

/// a * b + c with one rounding, on every target.
HWY_INLINE VF fma(VF a, VF b, VF c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  static_assert(kLanes == 1);
  return hn::Set(F32(), std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#endif
}

HWY_INLINE VU load_words(const uint8_t* from) {
  return hn::LoadU(U32(), reinterpret_cast<const uint32_t*>(from));
}
HWY_INLINE VF load_floats(const uint8_t* from) {
  return hn::LoadU(F32(), reinterpret_cast<const float*>(from));
}
HWY_INLINE VF load_f16s(const uint8_t* from) {
  const hn::Rebind<hwy::float16_t, F32> dh;
  return hn::PromoteTo(F32(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE VF load_u8s(const uint8_t* from) {
  const hn::Rebind<uint8_t, F32> d8;
  return hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(d8, from)));
}
HWY_INLINE VF load_i8s(const uint8_t* from) {
  const hn::Rebind<int8_t, F32> d8;
  return hn::ConvertTo(F32(),
                       hn::PromoteTo(I32(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(from))));
}

/// Byte kByte (0 or 1) of each 16-bit half, as the half.
template <int kByte>
HWY_INLINE VU halves_byte(VU v) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(U32(), hn::GetLane(v) >> 8 * kByte & 0x00ff00ff);
#else
  if constexpr (kByte == 0) {
    return hn::And(v, hn::Set(U32(), 0x00ff00ff));
  } else {
    const hn::Repartition<uint16_t, U32> d16;
    return hn::BitCast(U32(), hn::ShiftRight<8>(hn::BitCast(d16, v)));
  }
#endif
}

/// The same with the byte's sign.
template <int kByte>
HWY_INLINE VU halves_signed_byte(VU v) {
#if HWY_TARGET == HWY_SCALAR
  const uint32_t word = hn::GetLane(v) >> 8 * kByte;
  const auto low = static_cast<uint16_t>(static_cast<int16_t>(static_cast<int8_t>(word)));
  const auto high = static_cast<uint16_t>(static_cast<int16_t>(static_cast<int8_t>(word >> 16)));
  return hn::Set(U32(), low | static_cast<uint32_t>(high) << 16);
#else
  const hn::Repartition<int16_t, U32> d16;
  const auto halves = hn::BitCast(d16, v);
  if constexpr (kByte == 0) {
    return hn::BitCast(U32(), hn::ShiftRight<8>(hn::ShiftLeft<8>(halves)));
  } else {
    return hn::BitCast(U32(), hn::ShiftRight<8>(halves));
  }
#endif
}

/// sum + the products of a lane's two signed 16-bit halves; exact while the sum fits 32 bits.
HWY_INLINE VI dot_halves(VI sum, VU w, VI x) {
#if ATLAS_VNNI
  return VI{_mm512_dpwssd_epi32(sum.raw, w.raw, x.raw)};
#elif HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  return VI{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(w.raw, x.raw))};
#elif HWY_TARGET == HWY_AVX2
  return VI{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(w.raw, x.raw))};
#else
  const I32 di;
  const VI ws = hn::BitCast(di, w);
  const VI low =
      hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(ws)), hn::ShiftRight<16>(hn::ShiftLeft<16>(x)));
  return hn::Add(sum, hn::Add(low, hn::Mul(hn::ShiftRight<16>(ws), hn::ShiftRight<16>(x))));
#endif
}

HWY_INLINE VI broadcast_word(const uint8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return hn::Set(I32(), word);
}
HWY_INLINE VF broadcast_float(const uint8_t* from) {
  float value;
  std::memcpy(&value, from, sizeof(value));
  return hn::Set(F32(), value);
}

/// y[0, count) = (add ? y : 0) + value, at most kLanes elements.
HWY_INLINE void store_outputs(VF value, float* y, uint32_t count, bool add) {
  const F32 df;
  if (count >= kLanes) {
    hn::StoreU(add ? hn::Add(hn::LoadU(df, y), value) : value, df, y);
    return;
  }
  HWY_ALIGN float lanes[kLanes];
  hn::Store(value, df, lanes);
  for (uint32_t i = 0; i < count; ++i) y[i] = add ? y[i] + lanes[i] : lanes[i];
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LANES_INL_H_
