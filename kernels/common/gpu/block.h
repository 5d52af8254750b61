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

/// The sum of the values of all threads before this one; `total` gets that of all.
template <uint32_t kThreads>
ATLAS_DEVICE uint32_t block_before(uint32_t value, uint32_t* shared, uint32_t& total) {
  using namespace device;
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  const auto up_to_lane = [](uint32_t sum) {
    for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
      const uint32_t other = shuffle_up(sum, apart);
      if (lane_index() >= apart) sum += other;
    }
    return sum;
  };
  const uint32_t in_warp = up_to_lane(value);
  if (lane_index() == kWarpLanes - 1) store(shared + warp_index(), in_warp);
  block_barrier();  // every warp's sum is there
  const uint32_t of_warps =
      up_to_lane(lane_index() < kWarps ? load(shared + lane_index()) : uint32_t{0});
  total = shuffle(of_warps, kWarps - 1);
  const uint32_t before = shuffle(of_warps, warp_index() + kWarpLanes - 1);
  block_barrier();  // read by all before `shared` is used again
  return in_warp - value + (warp_index() == 0 ? 0 : before);
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
