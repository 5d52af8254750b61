// What threads of a block find out together, and structs as registers.
#pragma once

#include "kernels/common/device/device.h"

namespace atlas::kernels {

/// Words of shared memory that the functions below take.
inline constexpr uint32_t kBlockWords = device::kWarpLanes;

/// Whether any thread of the block votes for it. All threads come; `shared` has kBlockWords words.
template <uint32_t kThreads>
ATLAS_DEVICE bool block_any(bool vote, uint32_t* shared) {
  using namespace device;
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  const bool some = any(vote);
  if (lane_index() == 0) store(shared + warp_index(), some ? 1u : 0u);
  block_barrier();  // every warp's vote is there
  const bool result = any(lane_index() < kWarps && load(shared + lane_index()) != 0);
  block_barrier();  // read by all before `shared` is used again
  return result;
}

/// The sum of the values of all threads before this one; `total` gets that of all. `shared` has
/// kBlockWords elements.
template <uint32_t kThreads, typename T>
ATLAS_DEVICE T block_before(T value, T* shared, T& total) {
  using namespace device;
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  const auto up_to_lane = [](T sum) {
    for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
      const T other = shuffle_up(sum, apart);
      if (lane_index() >= apart) sum += other;
    }
    return sum;
  };
  const T in_warp = up_to_lane(value);
  if (lane_index() == kWarpLanes - 1) store(shared + warp_index(), in_warp);
  block_barrier();  // every warp's sum is there
  const T of_warps = up_to_lane(lane_index() < kWarps ? load(shared + lane_index()) : T{0});
  total = shuffle(of_warps, kWarps - 1);
  const T before = shuffle(of_warps, warp_index() + kWarpLanes - 1);
  block_barrier();  // read by all before `shared` is used again
  return in_warp - value + (warp_index() == 0 ? 0 : before);
}

/// Sorts a list in shared memory, ascending, by a bitonic network. It has room for the next power
/// of two of elements. All threads come, with the list written.
template <uint32_t kThreads>
ATLAS_DEVICE void block_sort(uint64_t* list, uint32_t count) {
  using namespace device;
  uint32_t size = 1;
  while (size < count) size *= 2;
  for (uint32_t i = count + thread_index(); i < size; i += kThreads) store(list + i, ~uint64_t{0});
  block_barrier();  // the list is whole
  ATLAS_ROLLED
  for (uint32_t run = 2; run <= size; run *= 2) {
    ATLAS_ROLLED
    for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
      ATLAS_ROLLED
      for (uint32_t i = thread_index(); i < size / 2; i += kThreads) {
        const uint32_t low = 2 * i - (i & (apart - 1)), high = low + apart;
        const uint64_t a = load(list + low), b = load(list + high);
        if ((a > b) != ((low & run) == 0)) continue;
        store(list + low, b);
        store(list + high, a);
      }
      block_barrier();  // each step reads what others wrote in the last one
    }
  }
}

/// A struct of 4-byte words (or 8-byte ones that need no more alignment) from memory.
template <typename T>
struct WordsOf {
  uint32_t w[sizeof(T) / 4];
};
template <typename T>
ATLAS_DEVICE T load_struct(const T* from) {
  static_assert(sizeof(T) % 4 == 0);
  WordsOf<T> words;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < sizeof(T) / 4; ++i) {
    words.w[i] = device::load(reinterpret_cast<const uint32_t*>(from) + i);
  }
  return __builtin_bit_cast(T, words);
}
template <typename T>
ATLAS_DEVICE void store_struct(T* to, const T& value) {
  static_assert(sizeof(T) % 4 == 0);
  const auto words = __builtin_bit_cast(WordsOf<T>, value);
  ATLAS_UNROLL
  for (uint32_t i = 0; i < sizeof(T) / 4; ++i) {
    device::store(reinterpret_cast<uint32_t*>(to) + i, words.w[i]);
  }
}

/// The block's threads copy `words` words. Loads of four are under way together: where they come
/// from may be the host's memory.
template <uint32_t kThreads>
ATLAS_DEVICE void copy_words(const void* from, void* to, uint32_t words) {
  using namespace device;
  constexpr uint32_t kAhead = 4;
  const auto copy = [&]<typename Unit>(Unit) {
    const uint32_t units = words / (sizeof(Unit) / 4);
    for (uint32_t first = thread_index(); first < units; first += kAhead * kThreads) {
      Unit held[kAhead];
      ATLAS_UNROLL
      for (uint32_t k = 0; k < kAhead; ++k) {
        const uint32_t i = first + k * kThreads;
        if (i < units) held[k] = load(static_cast<const Unit*>(from) + i);
      }
      ATLAS_UNROLL
      for (uint32_t k = 0; k < kAhead; ++k) {
        const uint32_t i = first + k * kThreads;
        if (i < units) store(static_cast<Unit*>(to) + i, held[k]);
      }
    }
    return units * (sizeof(Unit) / 4);
  };
  const uint64_t places = reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to);
  if ((places & 15) == 0) {
    const uint32_t done = copy(Words4{});
    if (thread_index() < words - done) {
      store(static_cast<uint32_t*>(to) + done + thread_index(),
            load(static_cast<const uint32_t*>(from) + done + thread_index()));
    }
  } else {
    copy(uint32_t{0});
  }
}

}  // namespace atlas::kernels
