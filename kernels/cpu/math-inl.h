// Elementary functions in float32 with one fixed order of operations, for any Highway tag. Per
// target.
//
// Polynomials are our own weighted least-maximum fits (their errors stand beside them). Errors
// against float64 over all inputs are checked in tests/unit/kernels/math_test.cpp.
#if defined(ATLAS_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_KERNELS_CPU_MATH_INL_H_
#undef ATLAS_KERNELS_CPU_MATH_INL_H_
#else
#define ATLAS_KERNELS_CPU_MATH_INL_H_
#endif

#include "kernels/cpu/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kLn2High = 0x1.62e4p-1f;  // few bits: its small multiples are exact
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;

/// e^x, within 2 units in the last place; subnormal results too. -infinity: 0; NaN: NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Past these bounds the result is 0 or infinity. Max and Min lose a NaN; it comes back at the
  // end.
  const V bounded = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const V n = hn::Round(hn::Mul(bounded, hn::Set(d, 0x1.715476p+0f)));
  V r = hn::NegMulAdd(n, hn::Set(d, kLn2High), bounded);
  r = hn::NegMulAdd(n, hn::Set(d, kLn2Low), r);
  // (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2; error 2^-28 of e^r.
  V p = hn::Set(d, 0x1.6a2352p-10f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.123a6cp-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5558f4p-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.555490p-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.fffffcp-2f));
  p = hn::MulAdd(hn::Mul(r, r), p, r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  // 2^n as a product of two powers, each of which is a normal number.
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto bias = hn::Set(di, 127);
  const V first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias)));
  const V y = hn::Mul(hn::Mul(p, first), second);
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

/// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)], within 2 units in the last place.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogNearOne(D d, V f) {
  // (log(1 + f) - f + f^2 / 2) / f^3; error 2^-27 of log(1 + f).
  V q = hn::Set(d, -0x1.38b452p-4f);
  q = hn::MulAdd(q, f, hn::Set(d, 0x1.056f9ap-3f));
  q = hn::MulAdd(q, f, hn::Set(d, -0x1.0d8ed0p-3f));
  q = hn::MulAdd(q, f, hn::Set(d, 0x1.22d812p-3f));
  q = hn::MulAdd(q, f, hn::Set(d, -0x1.547126p-3f));
  q = hn::MulAdd(q, f, hn::Set(d, 0x1.99a014p-3f));
  q = hn::MulAdd(q, f, hn::Set(d, -0x1.00022ap-2f));
  q = hn::MulAdd(q, f, hn::Set(d, 0x1.555554p-2f));
  const V square = hn::Mul(f, f);
  const V tail = hn::MulAdd(hn::Mul(square, f), q, hn::Mul(square, hn::Set(d, -0.5f)));
  return hn::Add(f, tail);
}

/// Splits a positive normal x into 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
template <class D, class V = hn::Vec<D>>
HWY_INLINE void SplitPower(D d, V x, V& k, V& f) {
  const hn::RebindToSigned<D> di;
  // Subtracting the bits of sqrt(1/2) makes the exponent change where 1 + f would.
  const auto root = hn::Set(di, 0x3f3504f3);
  const auto shifted = hn::Sub(hn::BitCast(di, x), root);
  const auto power = hn::ShiftRight<23>(shifted);
  k = hn::ConvertTo(d, power);
  const auto mantissa = hn::Sub(hn::BitCast(di, x), hn::ShiftLeft<23>(power));
  f = hn::Sub(hn::BitCast(d, mantissa), hn::Set(d, 1.0f));
}

/// log(x) of a positive normal x, within 3 units in the last place, or 2^-25 near 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogPositive(D d, V x) {
  V k, f;
  SplitPower(d, x, k, f);
  const V log_f = hn::MulAdd(k, hn::Set(d, kLn2Low), LogNearOne(d, f));
  return hn::MulAdd(k, hn::Set(d, kLn2High), log_f);
}

/// -log(1 - u) for u = (bits + 1/2) / 2^31, bits < 2^31: an exponential variate. Small values keep
/// their relative precision, so the largest of many Gumbel variates -log(this) are told apart.
template <class D, class DI = hn::RebindToSigned<D>>
HWY_INLINE hn::Vec<D> ExponentialFromBits(D d, hn::Vec<DI> bits) {
  using V = hn::Vec<D>;
  const DI di;
  const V half = hn::Set(d, 0.5f);
  const V unit = hn::Set(d, 0x1p-31f);
  const V u = hn::Mul(hn::Add(hn::ConvertTo(d, bits), half), unit);
  const auto complement = hn::Sub(hn::Set(di, 0x7fffffff), bits);
  const V rest = hn::Mul(hn::Add(hn::ConvertTo(d, complement), half), unit);  // 1 - u
  V k, f;
  SplitPower(d, rest, k, f);
  // Without a power of two taken out, f is -u, and u itself is the more precise.
  f = hn::IfThenElse(hn::Eq(k, hn::Zero(d)), hn::Neg(u), f);
  const V log_f = hn::MulAdd(k, hn::Set(d, kLn2Low), LogNearOne(d, f));
  return hn::Neg(hn::MulAdd(k, hn::Set(d, kLn2High), log_f));
}

template <size_t... I>
HWY_INLINE F16 Exp16(const F16& x, std::index_sequence<I...>) {
  return {{Exp(F32(), x.r[I])...}};
}
HWY_INLINE F16 Exp16(const F16& x) { return Exp16(x, kAll); }

/// 1 + e^-x: what the logistic functions divide by.
HWY_INLINE F16 LogisticDivisor16(const F16& x) {
  return Add(Set16(1.0f), Exp16(Mul(x, Set16(-1.0f))));
}
HWY_INLINE F16 Sigmoid16(const F16& x) { return Div(Set16(1.0f), LogisticDivisor16(x)); }
HWY_INLINE F16 Silu16(const F16& x) { return Div(x, LogisticDivisor16(x)); }

/// The same bits as one of Sigmoid16's lanes.
HWY_INLINE float SigmoidOf(float x) {
  float lanes[16];
  Store16(Sigmoid16(Set16(x)), lanes);
  return lanes[0];
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
