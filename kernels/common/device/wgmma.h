// Matrix instructions of Hopper that four warps execute together (wgmma, sm_90a), with A in
// registers and B in shared memory. They run on while the warps do something else. Not part of
// device.h: a kernel that is made of them includes this.
//
// Order: what threads write of B, then async_proxy_fence() in each of them, then a barrier, then
// the instructions; or the barrier, then the fence in each lane that multiplies, then the
// instructions. A fence waits for all that its thread has under way, asynchronous copies too. A
// group of them: wgmma_begin(), instructions, wgmma_commit(). Until a wgmma_wait has taken the
// group, nothing else touches its sums, changes the words of its A or writes its B. Source: PTX
// ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

#include "kernels/common/device/device.h"

#if defined(ATLAS_HAS_WGMMA)

namespace atlas::device {

/// Sums of a lane over 64 rows of A and `kColumns` of B: cells are wgmma_cell's.
template <uint32_t kColumns>
struct WgmmaSums {
  static_assert(kColumns % 8 == 0 && kColumns <= 256);
  float r[kColumns / 2];
};

/// B in shared memory: a row of 64 elements of 2 bytes for each column of the result, swizzled as
/// wgmma_swizzled says. The two words of the instruction's descriptor.
struct WgmmaMatrix {
  uint32_t begin, stride;

  /// The same from the 16 elements of step `step` on, of the four that a row has.
  ATLAS_DEVICE WgmmaMatrix at_step(uint32_t step) const { return at_byte(32 * step); }
  /// The same `bytes` further on, a multiple of 16.
  ATLAS_DEVICE WgmmaMatrix at_byte(uint32_t bytes) const { return {begin + bytes / 16, stride}; }
  ATLAS_DEVICE uint64_t descriptor() const { return uint64_t{stride} << 32 | begin; }
};
/// From `matrix` on (a multiple of 1,024 bytes); `group_bytes` lie between the begins of eight rows
/// and the next eight.
ATLAS_DEVICE WgmmaMatrix wgmma_matrix(const void* matrix, uint32_t group_bytes) {
#if defined(ATLAS_FORM_CUDA)
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(matrix));
#else
  const auto at = static_cast<uint32_t>(reinterpret_cast<uint64_t>(matrix));
#endif
  // Begin and stride in units of 16 bytes; bit 16 of the first word is a stride that this order
  // does not use, bit 30 of the second the swizzle of 128 bytes.
  return {(at & 0x3ffffu) / 16 + 0x10000u, group_bytes / 16 | 0x40000000u};
}

/// What the thread wrote to shared memory before (asynchronous copies that it has waited for too)
/// is seen by matrix instructions behind the next barrier; and what lies before a barrier that it
/// has passed by those that it takes part in from here on.
ATLAS_DEVICE void async_proxy_fence(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  simt::matrix_proxy_fence(site);
#endif
}

/// Before the first instruction of a group: the words of A that it takes have been written.
template <uint32_t kCount>
ATLAS_DEVICE void wgmma_begin(MmaA (&a)[kCount] ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  // The compiler writes none of them later.
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    asm volatile("" : "+r"(a[i].r[0]), "+r"(a[i].r[1]), "+r"(a[i].r[2]), "+r"(a[i].r[3])::"memory");
  }
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  static_cast<void>(a);
  simt::wgmma_fence(site);
#endif
}
ATLAS_DEVICE void wgmma_commit(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  simt::wgmma_commit(site);
#endif
}
/// Waits until at most `kGroupsLeft` groups run: words of A that the others took may change. Two
/// groups, each with a wait behind it, follow each other in different basic blocks (wgmma_apart),
/// or ptxas 13.0 takes the words that are written between them for those of the group that runs.
template <uint32_t kGroupsLeft>
ATLAS_DEVICE void wgmma_wait(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
#else
  simt::wgmma_wait(kGroupsLeft, site);
#endif
}
/// Between two groups where no branch stands there anyway. `never` is false in every launch, and no
/// constant.
ATLAS_DEVICE void wgmma_apart(bool never ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  if (never) wgmma_wait<0>();
#else
  if (never) wgmma_wait<0>(site);
#endif
}
/// Waits for all groups: `sums` may be read.
template <uint32_t kColumns>
ATLAS_DEVICE void wgmma_wait_for(WgmmaSums<kColumns>& sums ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  wgmma_wait<0>();
  // The compiler takes them for complete from the instruction on: no read moves before the wait.
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kColumns / 2; ++i) asm volatile("" : "+f"(sums.r[i])::"memory");
#else
  static_cast<void>(sums);
  wgmma_wait<0>(site);
#endif
}

#if defined(ATLAS_FORM_CUDA)
#define ATLAS_WGMMA_8(c, i)                                                                       \
  "+f"((c)[(i)]), "+f"((c)[(i) + 1]), "+f"((c)[(i) + 2]), "+f"((c)[(i) + 3]), "+f"((c)[(i) + 4]), \
      "+f"((c)[(i) + 5]), "+f"((c)[(i) + 6]), "+f"((c)[(i) + 7])
#define ATLAS_WGMMA_32(c, i)                                                  \
  ATLAS_WGMMA_8(c, i), ATLAS_WGMMA_8(c, (i) + 8), ATLAS_WGMMA_8(c, (i) + 16), \
      ATLAS_WGMMA_8(c, (i) + 24)
#define ATLAS_WGMMA_D32                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define ATLAS_WGMMA_D40 \
  ATLAS_WGMMA_D32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ATLAS_WGMMA_D48                        \
  ATLAS_WGMMA_D32                              \
  ", %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define ATLAS_WGMMA_D64                        \
  ATLAS_WGMMA_D48                              \
  ", %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
/// The operands behind `d`'s have the numbers a0 to a3, b and p.
#define ATLAS_WGMMA(columns, type, d, a0, a1, a2, a3, b, p, ...)                               \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #p                                   \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" d    \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", adds, 1, 1, 0;\n}"       \
               : __VA_ARGS__                                                                   \
               : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(inputs.descriptor()), \
                 "r"(static_cast<uint32_t>(add))                                               \
               : "memory")
#define ATLAS_WGMMA_COLUMNS(type)                                                              \
  if constexpr (kColumns == 64) {                                                              \
    ATLAS_WGMMA(64, type, ATLAS_WGMMA_D32, 32, 33, 34, 35, 36, 37, ATLAS_WGMMA_32(sums.r, 0)); \
  } else if constexpr (kColumns == 80) {                                                       \
    ATLAS_WGMMA(80, type, ATLAS_WGMMA_D40, 40, 41, 42, 43, 44, 45, ATLAS_WGMMA_32(sums.r, 0),  \
                ATLAS_WGMMA_8(sums.r, 32));                                                    \
  } else if constexpr (kColumns == 96) {                                                       \
    ATLAS_WGMMA(96, type, ATLAS_WGMMA_D48, 48, 49, 50, 51, 52, 53, ATLAS_WGMMA_32(sums.r, 0),  \
                ATLAS_WGMMA_8(sums.r, 32), ATLAS_WGMMA_8(sums.r, 40));                         \
  } else {                                                                                     \
    ATLAS_WGMMA(128, type, ATLAS_WGMMA_D64, 64, 65, 66, 67, 68, 69, ATLAS_WGMMA_32(sums.r, 0), \
                ATLAS_WGMMA_32(sums.r, 32));                                                   \
  }
#endif

/// 16 elements of f16: sums += a b in float32, or = a b where not `add`. The bits of mma_f16.
template <uint32_t kColumns>
ATLAS_DEVICE void wgmma_f16(WgmmaSums<kColumns>& sums, const MmaA& a, const WgmmaMatrix& inputs,
                            bool add ATLAS_SITE) {
  static_assert(kColumns == 64 || kColumns == 80 || kColumns == 96 || kColumns == 128);
#if defined(ATLAS_FORM_CUDA)
  ATLAS_WGMMA_COLUMNS("f16")
#else
  simt::wgmma(simt::Matrix::kWgmmaF16, sums.r, kColumns, a.r, inputs.descriptor(), add, site);
#endif
}
/// The same of bf16.
template <uint32_t kColumns>
ATLAS_DEVICE void wgmma_bf16(WgmmaSums<kColumns>& sums, const MmaA& a, const WgmmaMatrix& inputs,
                             bool add ATLAS_SITE) {
  static_assert(kColumns == 64 || kColumns == 80 || kColumns == 96 || kColumns == 128);
#if defined(ATLAS_FORM_CUDA)
  ATLAS_WGMMA_COLUMNS("bf16")
#else
  simt::wgmma(simt::Matrix::kWgmmaBf16, sums.r, kColumns, a.r, inputs.descriptor(), add, site);
#endif
}

}  // namespace atlas::device

#endif  // ATLAS_HAS_WGMMA
