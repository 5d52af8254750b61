// Work cut into numbered pieces for a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace atlas::quantize {

/// Calls `work(i)` once for each i below `count`, from `threads` threads of which this is one.
/// Returns when all are done. What `work` does for one i must not depend on another.
inline void for_each_piece(uint64_t count, uint32_t threads,
                           const std::function<void(uint64_t)>& work) {
  std::atomic<uint64_t> next = 0;
  const auto run = [&] {
    for (uint64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (uint64_t t = 1; t < std::min<uint64_t>(threads, count); ++t) others.emplace_back(run);
  run();
}

}  // namespace atlas::quantize
