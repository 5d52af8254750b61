// What the tests of the core's row kernels share: widths, and a run on every instruction set.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/numbers.h"

namespace atlas::test {

inline constexpr uint32_t kRows = 7;

/// Widths around whole groups of 16 and of 64.
inline const std::vector<uint32_t> kWidths = {1, 2, 15, 16, 17, 31, 48, 63, 64, 100, 576, 1537};

/// Runs a kernel for rows [first, first + count) of y.
using Run = std::function<void(const CpuPack&, float* y, uint32_t first, uint32_t count, Split)>;

/// Runs it as a whole, shared by threads, and row by row, on every instruction set: all bits must
/// be equal. Returns the best instruction set's y, which begins as `initial`.
inline std::vector<float> same_on_all(const std::vector<float>& initial, const Run& run) {
  const CpuPack pack;
  std::vector<float> best;
  for (const CpuTarget& target : cpu_targets()) {
    CAPTURE(target.name);
    const ForcedTarget forced(target);
    std::vector<float> whole = initial, shared = initial, single = initial;
    run(pack, whole.data(), 0, kRows, {});
    run(pack, shared.data(), 0, kRows, {3, 2});
    CHECK(same_bits(whole, shared));
    for (uint32_t r = kRows; r-- > 0;) run(pack, single.data(), r, 1, {});
    CHECK(same_bits(whole, single));
    if (best.empty()) best = whole;
    // The portable code has no fused multiply-add: it may round once more.
    if (target.name != "SCALAR") CHECK(same_bits(whole, best));
    if (target.name == "SCALAR") {
      CHECK(largest_difference(whole, std::vector<double>(best.begin(), best.end())) < 1e-5);
    }
  }
  return best;
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace atlas::test
