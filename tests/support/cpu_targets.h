// Runs a test body once for each instruction set that the machine and the CPU pack have.
#pragma once

// Before Highway: the list of targets that the pack is built for.
#include "kernels/cpu/targets.h"
//
#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

namespace atlas::test {

struct CpuTarget {
  int64_t bit;
  std::string name;
};

/// Best first. The last one is the portable code.
inline std::vector<CpuTarget> cpu_targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<CpuTarget> targets;
  const int64_t available = hwy::SupportedTargets() & HWY_TARGETS;
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((available & target) != 0) targets.push_back({target, hwy::TargetName(target)});
  }
  return targets;
}

/// While it lives, kernels run the code of one target. The choice is the process's: one at a time.
class ForcedTarget {
 public:
  explicit ForcedTarget(const CpuTarget& target) {
    hwy::SetSupportedTargetsForTest(target.bit);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~ForcedTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace atlas::test
