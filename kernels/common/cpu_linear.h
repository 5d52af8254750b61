// How the CPU pack's products cut their work: what a record's grid and scratch must agree on with
// the kernel. Nothing here changes a result.
#pragma once

#include <cstdint>

#include "kernels/common/i16b32.h"
#include "kernels/common/linear.h"
#include "plugins/abi/atlas_plugin.h"  // ATLAS_EPILOGUE_*

namespace atlas::kernels {

/// Row groups of one task: single groups until there are 64 tasks, at most 8.
constexpr uint32_t linear_groups_per_task(uint32_t n) {
  const uint32_t wanted = n / kRowGroup / 64;
  return wanted < 1 ? 1 : (wanted > 8 ? 8 : wanted);
}

/// Tasks of a product with `n` outputs: the record's grid.
constexpr uint32_t linear_tasks(uint32_t n) {
  const uint32_t outputs = linear_groups_per_task(n) * kRowGroup;
  return n / outputs + (n % outputs != 0 ? 1 : 0);
}

/// Tasks of a product of experts of which at most `experts` have rows. The work is dealt out to
/// them (kernels/cpu/grouped_items.h), so more tasks than this would only read the offsets more
/// often.
constexpr uint32_t grouped_tasks(uint32_t n, uint32_t experts) {
  const uint64_t groups = n / kRowGroup + (n % kRowGroup != 0 ? 1 : 0);
  const uint64_t items = groups * experts;
  return items < 128 ? static_cast<uint32_t>(items) : 128;
}

/// How far ahead of the walk weights are asked for. A hardware prefetcher stops at pages of 4 KiB.
inline constexpr uint32_t kPrefetchBytes = 4096;

}  // namespace atlas::kernels
