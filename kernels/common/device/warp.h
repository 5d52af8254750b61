// Exchange between the lanes of a warp. `mask` names exactly the lanes that come to the call; each
// of them must come, and a lane may read only lanes of the mask. HIP takes the lanes that are
// active, which are the same.
#pragma once

#include "kernels/common/device/index_sync.h"

namespace atlas::device {

/// Bits of one 4-byte value as another type.
template <typename To, typename From>
ATLAS_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

/// 4 bytes from lane `source` (0..31).
ATLAS_DEVICE uint32_t shuffle_word(uint32_t value, uint32_t source, uint32_t mask ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  return __shfl_sync(mask, value, static_cast<int>(source));
#elif defined(ATLAS_FORM_HIP)
  static_cast<void>(mask);
  return static_cast<uint32_t>(
      __builtin_amdgcn_ds_bpermute(static_cast<int>(source * 4), static_cast<int>(value)));
#else
  return simt::shuffle(value, source, mask, site);
#endif
}

/// The value that lane `source` (modulo 32) has. T has 4 or 8 bytes.
template <typename T>
ATLAS_DEVICE T shuffle(T value, uint32_t source, uint32_t mask = kAllLanes ATLAS_SITE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const uint32_t lane = source % kWarpLanes;
  if constexpr (sizeof(T) == 8) {
    const auto bits = bits_as<uint64_t>(value);
    const uint64_t low = shuffle_word(static_cast<uint32_t>(bits), lane, mask ATLAS_AT_SITE);
    const uint64_t high = shuffle_word(static_cast<uint32_t>(bits >> 32), lane, mask ATLAS_AT_SITE);
    return bits_as<T>(low | high << 32);
  } else {
    return bits_as<T>(shuffle_word(bits_as<uint32_t>(value), lane, mask ATLAS_AT_SITE));
  }
}

/// The value of the lane whose index differs in the bits of `flip`.
template <typename T>
ATLAS_DEVICE T shuffle_xor(T value, uint32_t flip, uint32_t mask = kAllLanes ATLAS_SITE) {
  return shuffle(value, lane_index() ^ flip, mask ATLAS_AT_SITE);
}

/// The value of the lane `distance` below; lanes without one keep their own.
template <typename T>
ATLAS_DEVICE T shuffle_up(T value, uint32_t distance, uint32_t mask = kAllLanes ATLAS_SITE) {
  const uint32_t lane = lane_index();
  return shuffle(value, lane >= distance ? lane - distance : lane, mask ATLAS_AT_SITE);
}
/// The value of the lane `distance` above; lanes without one keep their own.
template <typename T>
ATLAS_DEVICE T shuffle_down(T value, uint32_t distance, uint32_t mask = kAllLanes ATLAS_SITE) {
  const uint32_t lane = lane_index();
  return shuffle(value, lane + distance < kWarpLanes ? lane + distance : lane, mask ATLAS_AT_SITE);
}

/// Bit i: lane i is in the mask and its vote is true.
ATLAS_DEVICE uint32_t ballot(bool vote, uint32_t mask = kAllLanes ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  return __ballot_sync(mask, vote);
#elif defined(ATLAS_FORM_HIP)
  return __builtin_amdgcn_ballot_w32(vote) & mask;
#else
  return simt::ballot(vote, mask, site);
#endif
}
ATLAS_DEVICE bool any(bool vote, uint32_t mask = kAllLanes ATLAS_SITE) {
  return ballot(vote, mask ATLAS_AT_SITE) != 0;
}
ATLAS_DEVICE bool all(bool vote, uint32_t mask = kAllLanes ATLAS_SITE) {
  return ballot(vote, mask ATLAS_AT_SITE) == mask;
}

/// Over all lanes of a warp, each of which gets the result.
#if defined(ATLAS_FORM_CUDA)
#define ATLAS_WARP_REDUCE(name, operation)            \
  ATLAS_DEVICE uint32_t warp_##name(uint32_t value) { \
    return __reduce_##name##_sync(kAllLanes, value);  \
  }
#else
#define ATLAS_WARP_REDUCE(name, operation)                                      \
  ATLAS_DEVICE uint32_t warp_##name(uint32_t value ATLAS_SITE) {                \
    for (uint32_t flip = kWarpLanes / 2; flip > 0; flip /= 2) {                 \
      const uint32_t other = shuffle_xor(value, flip, kAllLanes ATLAS_AT_SITE); \
      value = operation;                                                        \
    }                                                                           \
    return value;                                                               \
  }
#endif
ATLAS_WARP_REDUCE(max, value > other ? value : other)
ATLAS_WARP_REDUCE(min, value < other ? value : other)
ATLAS_WARP_REDUCE(add, value + other)
#undef ATLAS_WARP_REDUCE

ATLAS_DEVICE uint32_t count_bits(uint32_t bits) {
#if defined(ATLAS_FORM_CUDA)
  return static_cast<uint32_t>(__popc(bits));
#else
  return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}
/// Index of the lowest bit that is set; there must be one.
ATLAS_DEVICE uint32_t lowest_bit(uint32_t bits) {
#if defined(ATLAS_FORM_CUDA)
  return static_cast<uint32_t>(__ffs(bits)) - 1;
#else
  return static_cast<uint32_t>(__builtin_ctz(bits));
#endif
}

}  // namespace atlas::device
