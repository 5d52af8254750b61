// Matrix instructions by name, over the fragments of fragments.h; all lanes of a warp take part.
// The emulated form adds exact products in float64 and rounds once an instruction: a device may
// differ in the last places, and its bits are compared on the device.
#pragma once

#include "kernels/common/device/fragments.h"
#include "kernels/common/device/warp.h"

namespace atlas::device {

#if defined(ATLAS_HAS_MMA_SYNC)

#if defined(ATLAS_FORM_CUDA)
#define ATLAS_MMA(shape_and_types, constraint, c, a, b)                                        \
  asm volatile("mma.sync.aligned." shape_and_types                                             \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"              \
               : "+" constraint((c).r[0]), "+" constraint((c).r[1]), "+" constraint((c).r[2]), \
                 "+" constraint((c).r[3])                                                      \
               : "r"((a).r[0]), "r"((a).r[1]), "r"((a).r[2]), "r"((a).r[3]), "r"((b).r[0]),    \
                 "r"((b).r[1]))
#else
#define ATLAS_MMA_EMULATED(kind, c, a, b) \
  simt::matrix(simt::Matrix::kind, (c).r, (a).r, (b).r, 0, 0, site)
#endif

/// m16n8k16, pairs of f16: c += a b in float32.
ATLAS_DEVICE void mma_f16(MmaSums& c, const MmaA& a, const MmaB& b ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  ATLAS_MMA("m16n8k16.row.col.f32.f16.f16.f32", "f", c, a, b);
#else
  ATLAS_MMA_EMULATED(kMmaF16, c, a, b);
#endif
}
/// m16n8k16, pairs of bf16.
ATLAS_DEVICE void mma_bf16(MmaSums& c, const MmaA& a, const MmaB& b ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  ATLAS_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f", c, a, b);
#else
  ATLAS_MMA_EMULATED(kMmaBf16, c, a, b);
#endif
}
/// m16n8k32, signed bytes: exact in int32, wrapping.
ATLAS_DEVICE void mma_s8(MmaIntSums& c, const MmaA& a, const MmaB& b ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  ATLAS_MMA("m16n8k32.row.col.s32.s8.s8.s32", "r", c, a, b);
#else
  ATLAS_MMA_EMULATED(kMmaS8, c, a, b);
#endif
}
/// m16n8k32, e4m3.
ATLAS_DEVICE void mma_e4m3(MmaSums& c, const MmaA& a, const MmaB& b ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  ATLAS_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32", "f", c, a, b);
#else
  ATLAS_MMA_EMULATED(kMmaE4m3, c, a, b);
#endif
}

#if defined(ATLAS_HAS_MMA_FP4)
/// m16n8k64, e2m1 with a ue4m3 scale for 16 elements: c += (a * scale_a) (b * scale_b). sm_121a
/// only.
ATLAS_DEVICE void mma_nvfp4(MmaSums& c, const MmaA& a, const MmaB& b, uint32_t scale_a,
                            uint32_t scale_b ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile(
      "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1."
      "f32."
      "ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {0, 0}, {%11}, "
      "{0, 0};"
      : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]), "r"(scale_a),
        "r"(scale_b));
#else
  simt::matrix(simt::Matrix::kMmaNvfp4, c.r, a.r, b.r, scale_a, scale_b, site);
#endif
}
#endif

#endif  // ATLAS_HAS_MMA_SYNC

#if defined(ATLAS_HAS_WMMA)

#if defined(ATLAS_FORM_HIP)
template <typename Vector, typename Fragment>
ATLAS_DEVICE Vector as_vector(const Fragment& fragment) {
  static_assert(sizeof(Vector) == sizeof(Fragment));
  return __builtin_bit_cast(Vector, fragment);
}
using WmmaF16x16 = _Float16 __attribute__((ext_vector_type(16)));
using WmmaI16x16 = short __attribute__((ext_vector_type(16)));
using WmmaI32x4 = int __attribute__((ext_vector_type(4)));
using WmmaI32x8 = int __attribute__((ext_vector_type(8)));
using WmmaF32x8 = float __attribute__((ext_vector_type(8)));
#endif

/// 16x16x16, f16: c += a b in float32. Lanes 16..31 of a and b must repeat lanes 0..15.
ATLAS_DEVICE void wmma_f16(WmmaSums& c, const WmmaHalves& a, const WmmaHalves& b ATLAS_SITE) {
#if defined(ATLAS_FORM_HIP)
  c = __builtin_bit_cast(
      WmmaSums, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(
                    as_vector<WmmaF16x16>(a), as_vector<WmmaF16x16>(b), as_vector<WmmaF32x8>(c)));
#else
  simt::matrix(simt::Matrix::kWmmaF16, c.r, a.r, b.r, 0, 0, site);
#endif
}
/// 16x16x16, bf16.
ATLAS_DEVICE void wmma_bf16(WmmaSums& c, const WmmaHalves& a, const WmmaHalves& b ATLAS_SITE) {
#if defined(ATLAS_FORM_HIP)
  c = __builtin_bit_cast(
      WmmaSums, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(
                    as_vector<WmmaI16x16>(a), as_vector<WmmaI16x16>(b), as_vector<WmmaF32x8>(c)));
#else
  simt::matrix(simt::Matrix::kWmmaBf16, c.r, a.r, b.r, 0, 0, site);
#endif
}
/// 16x16x16, signed bytes: exact in int32, wrapping.
ATLAS_DEVICE void wmma_s8(WmmaIntSums& c, const WmmaBytes& a, const WmmaBytes& b ATLAS_SITE) {
#if defined(ATLAS_FORM_HIP)
  c = __builtin_bit_cast(WmmaIntSums, __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(
                                          true, as_vector<WmmaI32x4>(a), true,
                                          as_vector<WmmaI32x4>(b), as_vector<WmmaI32x8>(c), false));
#else
  simt::matrix(simt::Matrix::kWmmaIu8, c.r, a.r, b.r, 0, 0, site);
#endif
}

#endif  // ATLAS_HAS_WMMA

/// c + the sum of four products of signed bytes, exact, wrapping.
ATLAS_DEVICE int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
#if defined(ATLAS_FORM_CUDA)
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_sudot4(true, static_cast<int>(a), true, static_cast<int>(b), c, false);
#else
  uint32_t sum = static_cast<uint32_t>(c);
  for (uint32_t i = 0; i < 4; ++i) {
    const int32_t x = static_cast<int8_t>(a >> 8 * i), y = static_cast<int8_t>(b >> 8 * i);
    sum += static_cast<uint32_t>(x * y);
  }
  return static_cast<int32_t>(sum);
#endif
}

}  // namespace atlas::device
