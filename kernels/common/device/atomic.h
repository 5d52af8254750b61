// Atomic operations on integers of 4 and 8 bytes. There are none on floating-point numbers: a sum
// whose order can vary has no place in a kernel.
#pragma once

#include "kernels/common/device/form.h"

namespace atlas::device {

enum class Order : uint32_t { kRelaxed, kAcquire, kRelease, kAcqRel };
/// Who takes part: all blocks of the device, or the host too.
enum class Scope : uint32_t { kDevice, kSystem };

#if defined(ATLAS_FORM_CUDA)
#define ATLAS_ORDER_OF(order)                         \
  ((order) == Order::kRelaxed   ? __NV_ATOMIC_RELAXED \
   : (order) == Order::kAcquire ? __NV_ATOMIC_ACQUIRE \
   : (order) == Order::kRelease ? __NV_ATOMIC_RELEASE \
                                : __NV_ATOMIC_ACQ_REL)
#define ATLAS_SCOPE_OF(scope) \
  ((scope) == Scope::kDevice ? __NV_THREAD_SCOPE_DEVICE : __NV_THREAD_SCOPE_SYSTEM)
#define ATLAS_ATOMIC(name) __nv_atomic_##name
#elif defined(ATLAS_FORM_HIP)
#define ATLAS_ORDER_OF(order)                      \
  ((order) == Order::kRelaxed   ? __ATOMIC_RELAXED \
   : (order) == Order::kAcquire ? __ATOMIC_ACQUIRE \
   : (order) == Order::kRelease ? __ATOMIC_RELEASE \
                                : __ATOMIC_ACQ_REL)
#define ATLAS_SCOPE_OF(scope) \
  ((scope) == Scope::kDevice ? __HIP_MEMORY_SCOPE_AGENT : __HIP_MEMORY_SCOPE_SYSTEM)
#define ATLAS_ATOMIC(name) __hip_atomic_##name
#endif

#if defined(ATLAS_FORM_EMULATED)
template <typename T>
inline T emulated_atomic(simt::AtomicOp op, T* at, T operand, T expected, Order order,
                         simt::Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  constexpr bool kSigned = T(-1) < T(0);
  return static_cast<T>(simt::atomic(op, at, static_cast<uint64_t>(operand),
                                     static_cast<uint64_t>(expected), sizeof(T), kSigned,
                                     static_cast<simt::Order>(order), site));
}
#define ATLAS_FETCH(name, Op)                                                          \
  template <Order kOrder = Order::kRelaxed, Scope kScope = Scope::kDevice, typename T> \
  ATLAS_DEVICE T atomic_##name(T* at, T operand ATLAS_SITE) {                          \
    return emulated_atomic(simt::AtomicOp::k##Op, at, operand, T(0), kOrder, site);    \
  }
#else
#define ATLAS_FETCH(name, Op)                                                          \
  template <Order kOrder = Order::kRelaxed, Scope kScope = Scope::kDevice, typename T> \
  ATLAS_DEVICE T atomic_##name(T* at, T operand) {                                     \
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);                                   \
    return ATLAS_ATOMIC(fetch_##name)(at, operand, ATLAS_ORDER_OF(kOrder),             \
                                      ATLAS_SCOPE_OF(kScope));                         \
  }
#endif

/// Each returns what was there before.
ATLAS_FETCH(add, Add)
ATLAS_FETCH(or, Or)
ATLAS_FETCH(and, And)
ATLAS_FETCH(max, Max)
ATLAS_FETCH(min, Min)
#undef ATLAS_FETCH

template <Order kOrder = Order::kRelaxed, Scope kScope = Scope::kDevice, typename T>
ATLAS_DEVICE T atomic_load(T* at ATLAS_SITE) {
  static_assert(kOrder == Order::kRelaxed || kOrder == Order::kAcquire);
#if defined(ATLAS_FORM_CUDA)
  return __nv_atomic_load_n(at, ATLAS_ORDER_OF(kOrder), ATLAS_SCOPE_OF(kScope));
#elif defined(ATLAS_FORM_HIP)
  return __hip_atomic_load(at, ATLAS_ORDER_OF(kOrder), ATLAS_SCOPE_OF(kScope));
#else
  return emulated_atomic(simt::AtomicOp::kLoad, at, T(0), T(0), kOrder, site);
#endif
}

template <Order kOrder = Order::kRelaxed, Scope kScope = Scope::kDevice, typename T>
ATLAS_DEVICE void atomic_store(T* at, T value ATLAS_SITE) {
  static_assert(kOrder == Order::kRelaxed || kOrder == Order::kRelease);
#if defined(ATLAS_FORM_CUDA)
  __nv_atomic_store_n(at, value, ATLAS_ORDER_OF(kOrder), ATLAS_SCOPE_OF(kScope));
#elif defined(ATLAS_FORM_HIP)
  __hip_atomic_store(at, value, ATLAS_ORDER_OF(kOrder), ATLAS_SCOPE_OF(kScope));
#else
  emulated_atomic(simt::AtomicOp::kStore, at, value, T(0), kOrder, site);
#endif
}

/// Returns what was there before.
template <Order kOrder = Order::kRelaxed, Scope kScope = Scope::kDevice, typename T>
ATLAS_DEVICE T atomic_exchange(T* at, T value ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  return __nv_atomic_exchange_n(at, value, ATLAS_ORDER_OF(kOrder), ATLAS_SCOPE_OF(kScope));
#elif defined(ATLAS_FORM_HIP)
  return __hip_atomic_exchange(at, value, ATLAS_ORDER_OF(kOrder), ATLAS_SCOPE_OF(kScope));
#else
  return emulated_atomic(simt::AtomicOp::kExchange, at, value, T(0), kOrder, site);
#endif
}

/// Writes `value` if `expected` is there. Returns what was there before.
template <Order kOrder = Order::kRelaxed, Scope kScope = Scope::kDevice, typename T>
ATLAS_DEVICE T atomic_compare_exchange(T* at, T expected, T value ATLAS_SITE) {
#if defined(ATLAS_FORM_CUDA)
  __nv_atomic_compare_exchange_n(at, &expected, value, false, ATLAS_ORDER_OF(kOrder),
                                 __NV_ATOMIC_RELAXED, ATLAS_SCOPE_OF(kScope));
  return expected;
#elif defined(ATLAS_FORM_HIP)
  __hip_atomic_compare_exchange_strong(at, &expected, value, ATLAS_ORDER_OF(kOrder),
                                       __ATOMIC_RELAXED, ATLAS_SCOPE_OF(kScope));
  return expected;
#else
  return emulated_atomic(simt::AtomicOp::kCompareExchange, at, value, expected, kOrder, site);
#endif
}

}  // namespace atlas::device
