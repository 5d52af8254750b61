// The Hadamard transform of 128 floats in memory: butterflies of strides 1, 2, 4, ... 64.
#if defined(ATLAS_CPU_EXL3_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_EXL3_HADAMARD_INL_H_
#undef ATLAS_CPU_EXL3_HADAMARD_INL_H_
#else
#define ATLAS_CPU_EXL3_HADAMARD_INL_H_
#endif

#include "kernels/common/exl3.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// For each lane the one that is kStride away, and the sign of the lane's own value.
template <uint32_t kStride>
struct ButterflyLanes {
  alignas(64) int32_t partner[kLanes];
  alignas(64) uint32_t sign[kLanes];
  constexpr ButterflyLanes() : partner(), sign() {
    for (uint32_t i = 0; i < kLanes; ++i) {
      partner[i] = static_cast<int32_t>(i ^ kStride);
      sign[i] = (i & kStride) != 0 ? 0x80000000u : 0u;
    }
  }
};
template <uint32_t kStride>
inline constexpr ButterflyLanes<kStride> kButterflyLanes;

/// Butterflies of stride kStride inside vectors: a lane with the stride's bit clear gets a + b, the
/// other one a - b.
template <uint32_t kStride>
HWY_INLINE VF butterfly_lanes(VF v) {
  constexpr const ButterflyLanes<kStride>& kTable = kButterflyLanes<kStride>;
  const VF other = hn::TableLookupLanes(v, hn::SetTableIndices(F32(), kTable.partner));
  return hn::Add(other, hn::Xor(v, hn::BitCast(F32(), hn::Load(U32(), kTable.sign))));
}

/// In place; `v` is aligned to 64 bytes.
HWY_INLINE void hadamard_block(float* v) {
  constexpr uint32_t kVectors = kExl3Block / kLanes;
  for (uint32_t i = 0; kLanes > 1 && i < kVectors; ++i) {
    VF x = hn::Load(F32(), v + i * kLanes);
    if constexpr (kLanes > 1) x = butterfly_lanes<1>(x);
    if constexpr (kLanes > 2) x = butterfly_lanes<2>(x);
    if constexpr (kLanes > 4) x = butterfly_lanes<4>(x);
    if constexpr (kLanes > 8) x = butterfly_lanes<8>(x);
    hn::Store(x, F32(), v + i * kLanes);
  }
  for (uint32_t stride = kLanes; stride < kExl3Block; stride *= 2) {
    for (uint32_t i = 0; i < kExl3Block; i += 2 * stride) {
      for (uint32_t j = i; j < i + stride; j += kLanes) {
        const VF a = hn::Load(F32(), v + j);
        const VF b = hn::Load(F32(), v + j + stride);
        hn::Store(hn::Add(a, b), F32(), v + j);
        hn::Store(hn::Sub(a, b), F32(), v + j + stride);
      }
    }
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_EXL3_HADAMARD_INL_H_
