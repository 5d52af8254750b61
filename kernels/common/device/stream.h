// What a stream of weights through shared memory takes beside memory.h: places whose addresses stay
// in registers, and loads that stay where they stand.
#pragma once

#include "kernels/common/device/memory.h"

namespace atlas::device {

/// 16 bytes of device memory, asked for where this stands: nvcc does not put it off until their
/// first use. For loads whose latencies shall pass together.
ATLAS_DEVICE Words4 load_here(const void* from ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  Words4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.w[0]), "=r"(value.w[1]), "=r"(value.w[2]), "=r"(value.w[3])
               : "l"(from));
  return value;
#else
  return load_as<Words4>(from ATLAS_AT_SITE);
#endif
}

/// The same address, of which nvcc knows nothing: it stays in registers, rather than being computed
/// again at each use.
ATLAS_DEVICE const uint8_t* kept(const uint8_t* at) {
#if defined(ATLAS_FORM_CUDA)
  asm("" : "+l"(at));
#endif
  return at;
}

/// A place in shared memory whose address stands in a register: what is copied to it and read from
/// it at offsets that are known when compiling takes no arithmetic.
class SharedPlace {
 public:
#if defined(ATLAS_FORM_CUDA)
  ATLAS_DEVICE explicit SharedPlace(uint8_t* at)
      : at_(static_cast<uint32_t>(__cvta_generic_to_shared(at))) {
    asm("" : "+r"(at_));
  }
#else
  ATLAS_DEVICE explicit SharedPlace(uint8_t* at) : at_(at) {}
#endif

  /// As async_copy, to `offset` bytes behind the place. With Reads::kOnce the place comes from
  /// lane_place().
  template <uint32_t kBytes, Reads kReads>
  ATLAS_DEVICE void copy(uint32_t offset, const void* from ATLAS_SITE) const {
#if defined(ATLAS_FORM_CUDA)
    copy_to_shared<kBytes, kReads>(at_ + offset, from);
#else
    async_copy<kBytes, kReads>(at_ + offset, from ATLAS_AT_SITE);
#endif
  }

  /// 4, 8 or 16 bytes, `offset` behind the place.
  template <typename T>
  ATLAS_DEVICE T load(uint32_t offset ATLAS_SITE) const {
#if defined(ATLAS_FORM_CUDA)
    union {
      T value;
      uint32_t w[sizeof(T) / 4];
    } read;
    if constexpr (sizeof(T) == 16) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(read.w[0]), "=r"(read.w[1]), "=r"(read.w[2]), "=r"(read.w[3])
                   : "r"(at_ + offset));
    } else if constexpr (sizeof(T) == 8) {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(read.w[0]), "=r"(read.w[1])
                   : "r"(at_ + offset));
    } else {
      static_assert(sizeof(T) == 4);
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(read.w[0]) : "r"(at_ + offset));
    }
    return read.value;
#else
    return load_as<T>(at_ + offset ATLAS_AT_SITE);
#endif
  }

 private:
#if defined(ATLAS_FORM_CUDA)
  uint32_t at_;
#else
  uint8_t* at_;
#endif
};

}  // namespace atlas::device
