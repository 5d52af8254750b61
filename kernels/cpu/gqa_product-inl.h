// The product that attention consists of: a few rows of scalars times a panel of vectors, in which
// k ascends and every element is summed by fma. Per target.
#if defined(ATLAS_KERNELS_CPU_GQA_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_KERNELS_CPU_GQA_PRODUCT_INL_H_
#undef ATLAS_KERNELS_CPU_GQA_PRODUCT_INL_H_
#else
#define ATLAS_KERNELS_CPU_GQA_PRODUCT_INL_H_
#endif

#include "kernels/cpu/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Rows that share the loads of a panel, at most.
inline constexpr size_t kProductRows = 6;

/// Rows of a panel that stand a stride apart.
struct StridedRows {
  const float* HWY_RESTRICT row;
  size_t stride;

  HWY_INLINE const float* next() {
    const float* now = row;
    row += stride;
    return now;
  }
  /// The same rows from a later column on.
  StridedRows from(size_t column) const { return {row + column, stride}; }
};
/// Rows of a panel that stand anywhere.
struct ListedRows {
  const float* const* rows;
  size_t column;

  HWY_INLINE const float* next() { return *rows++ + column; }
  ListedRows from(size_t more) const { return {rows, column + more}; }
};

/// c[r, 0 .. 16 * N) (+)= sum over j ascending of a[r][j] * b[j, 0 .. 16 * N), one fma each.
template <size_t R, size_t N, typename Rows>
HWY_INLINE void Panel(const float* const* a, Rows b, size_t count, float* HWY_RESTRICT c,
                      size_t c_stride, bool accumulate) {
  F16 sum[R][N];
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (size_t n = 0; n < N; ++n) {
      sum[r][n] = accumulate ? Load16(c + r * c_stride + 16 * n) : Set16(0.0f);
    }
  }
  const float* row[R];
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r) row[r] = a[r];
  for (size_t j = 0; j < count; ++j) {
    const float* HWY_RESTRICT next = b.next();
    F16 panel[N];
#pragma GCC unroll 8
    for (size_t n = 0; n < N; ++n) panel[n] = Load16(next + 16 * n);
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) {
      const F16 scalar = Set16(row[r][j]);
#pragma GCC unroll 8
      for (size_t n = 0; n < N; ++n) sum[r][n] = MulAdd(scalar, panel[n], sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (size_t n = 0; n < N; ++n) Store16(sum[r][n], c + r * c_stride + 16 * n);
  }
}

/// Groups of 16 columns for which R rows' sums fit into registers beside what else the loop holds.
template <size_t R>
inline constexpr size_t kPanelGroups = kRegisters == 1 || R == 1 ? 4
                                       : R <= 3                  ? 2
                                                                 : 1;

/// As Panel, for `groups` groups of 16 columns.
template <size_t R, typename Rows>
void ProductOf(const float* const* a, Rows b, size_t count, float* c, size_t c_stride,
               size_t groups, bool accumulate) {
  constexpr size_t kGroups = kPanelGroups<R>;
  while (groups >= kGroups) {
    Panel<R, kGroups>(a, b, count, c, c_stride, accumulate);
    groups -= kGroups;
    b = b.from(16 * kGroups);
    c += 16 * kGroups;
  }
  if constexpr (kGroups > 2) {
    if (groups == 3) Panel<R, 3>(a, b, count, c, c_stride, accumulate);
    if (groups == 2) Panel<R, 2>(a, b, count, c, c_stride, accumulate);
  }
  if constexpr (kGroups > 1) {
    if (groups == 1) Panel<R, 1>(a, b, count, c, c_stride, accumulate);
  }
}

/// As Panel, for `rows` (1 to kProductRows) rows and `groups` groups of 16 columns.
template <typename Rows>
HWY_INLINE void ProductOver(size_t rows, const float* const* a, Rows b, size_t count, float* c,
                            size_t c_stride, size_t groups, bool accumulate) {
  // Two or three rows mean one token, and a panel that comes from memory: where not all columns
  // fit, the first row goes alone and walks it in order, which prefetchers follow, and the others
  // find it in the cache. (AVX2, one row, context 512, 30 layers: 1.5 ms instead of 2.5 ms; context
  // 8,192: 33 ms instead of 45 ms. AMD EPYC 9004, one thread, 2026-11-29.)
  if (kRegisters > 1 && (rows == 2 || rows == 3)) {
    ProductOf<1>(a, b, count, c, c_stride, groups, accumulate);
    ++a;
    --rows;
    c += c_stride;
  }
  switch (rows) {
    case 1:
      return ProductOf<1>(a, b, count, c, c_stride, groups, accumulate);
    case 2:
      return ProductOf<2>(a, b, count, c, c_stride, groups, accumulate);
    case 3:
      return ProductOf<3>(a, b, count, c, c_stride, groups, accumulate);
    case 4:
      return ProductOf<4>(a, b, count, c, c_stride, groups, accumulate);
    case 5:
      return ProductOf<5>(a, b, count, c, c_stride, groups, accumulate);
    default:
      return ProductOf<6>(a, b, count, c, c_stride, groups, accumulate);
  }
}

HWY_INLINE void Product(size_t rows, const float* const* a, const float* b, size_t b_stride,
                        size_t count, float* c, size_t c_stride, size_t groups, bool accumulate) {
  ProductOver(rows, a, StridedRows{b, b_stride}, count, c, c_stride, groups, accumulate);
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
