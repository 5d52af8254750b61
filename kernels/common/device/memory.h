// Loads and stores, shared memory, asynchronous copies. Kernels touch device memory through these
// functions only; the emulated form has no other way to see an access.
#pragma once

#include "kernels/common/device/form.h"

#if !defined(ATLAS_FORM_EMULATED)
extern __shared__ __attribute__((aligned(128))) unsigned char atlas_shared_bytes[];
#endif

namespace atlas::device {

/// Registers of 8 and 16 bytes: one access where memory is aligned to their size.
struct alignas(8) Words2 {
  uint32_t w[2];
};
struct alignas(16) Words4 {
  uint32_t w[4];
};
struct alignas(8) Floats2 {
  float f[2];
};
struct alignas(16) Floats4 {
  float f[4];
};

/// A value of 1, 2, 4, 8 or 16 bytes, aligned to its size, from global or shared memory.
template <typename T>
ATLAS_DEVICE T load(const T* from ATLAS_SITE) {
  static_assert(sizeof(T) <= 16);
#if defined(ATLAS_FORM_EMULATED)
  T value;
  simt::read(from, &value, sizeof(T), site);
  return value;
#else
  return *from;
#endif
}

template <typename T>
ATLAS_DEVICE void store(T* to, T value ATLAS_SITE) {
  static_assert(sizeof(T) <= 16);
#if defined(ATLAS_FORM_EMULATED)
  simt::write(to, &value, sizeof(T), site);
#else
  *to = value;
#endif
}

/// Memory of any type as a register: `load_as<Words4>(bytes)`.
template <typename Register>
ATLAS_DEVICE Register load_as(const void* from ATLAS_SITE) {
  return load(static_cast<const Register*>(from) ATLAS_AT_SITE);
}
template <typename Register>
ATLAS_DEVICE void store_as(void* to, Register value ATLAS_SITE) {
  store(static_cast<Register*>(to), value ATLAS_AT_SITE);
}

/// Weights: 16 bytes that nothing writes while the kernel runs and nobody reads again, past the
/// first-level cache.
ATLAS_DEVICE Words4 load_once(const void* from ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  Words4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.w[0]), "=r"(value.w[1]), "=r"(value.w[2]), "=r"(value.w[3])
               : "l"(from));
  return value;
#elif defined(ATLAS_FORM_HIP)
  using Vector = uint32_t __attribute__((ext_vector_type(4)));
  const Vector loaded = __builtin_nontemporal_load(static_cast<const Vector*>(from));
  return {{loaded.x, loaded.y, loaded.z, loaded.w}};
#else
  return load_as<Words4>(from, site);
#endif
}

/// The block's dynamic shared memory from byte `offset` on. Its begin is 128-byte aligned.
template <typename T>
ATLAS_DEVICE T* shared_memory(uint32_t offset = 0) {
#if defined(ATLAS_FORM_EMULATED)
  return reinterpret_cast<T*>(simt::kDeviceBit + simt::kOrigin + offset);
#else
  return reinterpret_cast<T*>(atlas_shared_bytes + offset);
#endif
}

/// Bytes from the begin of the block's dynamic shared memory to the first multiple of `alignment`,
/// a power of two.
ATLAS_DEVICE uint32_t shared_padding(uint32_t alignment) {
#if defined(ATLAS_FORM_CUDA)
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(atlas_shared_bytes));
  return (0u - at) & (alignment - 1);
#else
  static_cast<void>(alignment);
  return 0;
#endif
}

/// A 0 that the compiler does not know to be one: an address that is computed from it is computed
/// where it is used, and takes no register of a loop around.
ATLAS_DEVICE uint32_t unknown_zero() {
  uint32_t zero = 0;
#if defined(ATLAS_FORM_CUDA)
  asm volatile("" : "+r"(zero));
#elif defined(ATLAS_FORM_HIP)
  asm volatile("" : "+v"(zero));
#endif
  return zero;
}

/// Whether anybody reads the same bytes again soon: another block, or a later launch before all
/// weights of the step have been read. What nobody reads again is the first to leave the
/// second-level cache: weights would drive out all else there, kernels' code included, which each
/// launch would fetch from memory anew.
enum class Reads { kOnce, kAgain };

#if defined(ATLAS_FORM_CUDA)
/// What createpolicy gives for L2::evict_first and all of the accesses.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000;
#endif

/// As load, of four bytes of device memory that are read once (Reads::kOnce).
ATLAS_DEVICE float load_passing(const float* from ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  float value;
  asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;"
               : "=f"(value)
               : "l"(from), "l"(kEvictFirst)
               : "memory");
  return value;
#elif defined(ATLAS_FORM_HIP)
  return __builtin_nontemporal_load(from);
#else
  return load(from, site);
#endif
}

#if defined(ATLAS_FORM_CUDA)
/// As async_copy, to an address of shared memory. With Reads::kOnce it must come from lane_place().
template <uint32_t kBytes, Reads kReads>
ATLAS_DEVICE void copy_to_shared(uint32_t to, const void* from) {
  constexpr bool kPast = kBytes == 16;  // past the first-level cache, which takes 16 bytes only
  if constexpr (kPast && kReads == Reads::kOnce) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(kEvictFirst)
                 : "memory");
  } else if constexpr (kPast) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else if constexpr (kReads == Reads::kOnce) {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3;" ::"r"(to),
                 "l"(from), "n"(kBytes), "l"(kEvictFirst)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
                 : "memory");
  }
}
#endif

/// The same place in shared memory, its address in a register of each lane. All lanes of the warp
/// take part. ptxas (13.0) adds a uniform register and a lane's one in the instruction that copies,
/// and then writes the wrong one for the hint of Reads::kOnce (an illegal instruction); of what a
/// shuffle gives it knows nothing.
template <typename T>
ATLAS_DEVICE T* lane_place(T* shared) {
#if defined(ATLAS_FORM_CUDA)
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return static_cast<T*>(
      __cvta_shared_to_generic(__shfl_sync(kAllLanes, address, threadIdx.x % kWarpLanes)));
#else
  return shared;
#endif
}

/// Begins a copy of 4, 8 or 16 aligned bytes from global to shared memory. The bytes are there for
/// this thread after async_wait, for others after a barrier behind it. With Reads::kOnce
/// `shared_to` comes from lane_place().
template <uint32_t kBytes, Reads kReads = Reads::kAgain>
ATLAS_DEVICE void async_copy(void* shared_to, const void* from ATLAS_SITE) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if defined(ATLAS_FORM_CUDA)
  copy_to_shared<kBytes, kReads>(static_cast<uint32_t>(__cvta_generic_to_shared(shared_to)), from);
#elif defined(ATLAS_FORM_HIP)
  // RDNA 3.5 has no such copy: through registers, complete at once.
  __builtin_memcpy(__builtin_assume_aligned(shared_to, kBytes),
                   __builtin_assume_aligned(from, kBytes), kBytes);
#else
  simt::async_copy(shared_to, from, kBytes, site);
#endif
}

/// Closes a group of copies: those that this thread has begun since the last one.
ATLAS_DEVICE void async_commit(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(ATLAS_FORM_EMULATED)
  simt::async_commit(site);
#endif
}

/// Waits until at most `kGroupsLeft` of this thread's groups are under way.
template <uint32_t kGroupsLeft>
ATLAS_DEVICE void async_wait(ATLAS_SITE_ONLY) {
#if defined(ATLAS_FORM_CUDA)
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
#elif defined(ATLAS_FORM_EMULATED)
  simt::async_wait(kGroupsLeft, site);
#endif
}

}  // namespace atlas::device
