// Angles of rotary embeddings, and the rotation of half-split pairs, as the contract of `rope` in
// kernels/common/core.h has them. Per target.
#if defined(ATLAS_KERNELS_CPU_ANGLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_KERNELS_CPU_ANGLES_INL_H_
#undef ATLAS_KERNELS_CPU_ANGLES_INL_H_
#else
#define ATLAS_KERNELS_CPU_ANGLES_INL_H_
#endif

#include "kernels/cpu/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Pairs whose angles are made together.
inline constexpr size_t kPairs = 64;

/// cos and sin of `angle`, by the quadrant's Taylor series (their next terms are below 2^-43).
template <class D, class V = hn::Vec<D>>
HWY_INLINE void CosSin(D d, V angle, V& cosine, V& sine) {
  const V n = hn::Round(hn::Mul(angle, hn::Set(d, 0x1.45f306dc9c883p-1)));  // 2 / pi
  V r = hn::NegMulAdd(n, hn::Set(d, 0x1.921fb54442d18p+0), angle);          // pi / 2, in two parts
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.1a62633145c07p-54), r);
  const V square = hn::Mul(r, r);
  V s = hn::Set(d, 1.0 / 6227020800.0);
  s = hn::MulAdd(s, square, hn::Set(d, -1.0 / 39916800.0));
  s = hn::MulAdd(s, square, hn::Set(d, 1.0 / 362880.0));
  s = hn::MulAdd(s, square, hn::Set(d, -1.0 / 5040.0));
  s = hn::MulAdd(s, square, hn::Set(d, 1.0 / 120.0));
  s = hn::MulAdd(s, square, hn::Set(d, -1.0 / 6.0));
  s = hn::MulAdd(hn::Mul(s, square), r, r);
  V c = hn::Set(d, 1.0 / 479001600.0);
  c = hn::MulAdd(c, square, hn::Set(d, -1.0 / 3628800.0));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0 / 40320.0));
  c = hn::MulAdd(c, square, hn::Set(d, -1.0 / 720.0));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0 / 24.0));
  c = hn::MulAdd(c, square, hn::Set(d, -0.5));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0));
  // Quadrants 1 and 3 swap the two; 1 and 2 turn the cosine's sign, 2 and 3 the sine's.
  const V quadrant = hn::Sub(n, hn::Mul(hn::Set(d, 4.0), hn::Floor(hn::Mul(n, hn::Set(d, 0.25)))));
  const auto is_one = hn::Eq(quadrant, hn::Set(d, 1.0));
  const auto is_two = hn::Eq(quadrant, hn::Set(d, 2.0));
  const auto is_three = hn::Eq(quadrant, hn::Set(d, 3.0));
  const auto swapped = hn::Or(is_one, is_three);
  const V even = hn::IfThenElse(swapped, s, c);
  const V odd = hn::IfThenElse(swapped, c, s);
  cosine = hn::IfThenElse(hn::Or(is_one, is_two), hn::Neg(even), even);
  sine = hn::IfThenElse(hn::Or(is_two, is_three), hn::Neg(odd), odd);
}

/// cos and sin of position * frequency[i] for `count` (at most kPairs) pairs, times magnitude.
HWY_INLINE void Angles(const float* frequency, size_t count, float position, float magnitude,
                       float* cosine, float* sine) {
  const hn::CappedTag<double, 8> d;
  double angle[kPairs], c[kPairs], s[kPairs];
  for (size_t i = 0; i < kPairs; ++i) angle[i] = i < count ? position * frequency[i] : 0.0f;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::Vec<decltype(d)> vc, vs;
    CosSin(d, hn::LoadU(d, angle + i), vc, vs);
    hn::StoreU(vc, d, c + i);
    hn::StoreU(vs, d, s + i);
  }
  for (size_t i = 0; i < count; ++i) {
    cosine[i] = static_cast<float>(c[i]) * magnitude;
    sine[i] = static_cast<float>(s[i]) * magnitude;
  }
}

/// Rotates `count` pairs: firsts at x, seconds at x + distance.
HWY_INLINE void RotateHalves(float* x, size_t distance, size_t count, const float* cosine,
                             const float* sine) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const F16 c = Load16(cosine + i), s = Load16(sine + i);
    const F16 a = Load16(x + i), b = Load16(x + distance + i);
    Store16(Sub(Mul(a, c), Mul(b, s)), x + i);
    Store16(Add(Mul(b, c), Mul(a, s)), x + distance + i);
  }
  for (; i < count; ++i) {
    const float a = x[i], b = x[distance + i];
    x[i] = a * cosine[i] - b * sine[i];
    x[distance + i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
