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

/// Begins a copy of 4, 8 or 16 aligned bytes from global to shared memory. The bytes are there for
/// this thread after async_wait, for others after a barrier behind it.
template <uint32_t kBytes>
ATLAS_DEVICE void async_copy(void* shared_to, const void* from ATLAS_SITE) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if defined(ATLAS_FORM_CUDA)
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared_to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
                 : "memory");
  }
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
