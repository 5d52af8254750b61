// How the CPU pack's products cut their work: what a record's grid and scratch must agree on with
// the kernel. Nothing here changes a result.
#pragma once

#include <cstdint>

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

/// Up to so many rows unpack weights in registers; more rows go through scratch.
inline constexpr uint32_t kDirectRows = 8;
/// A block of 32 elements and 16 outputs, unpacked: 16 vectors of code pairs, then two of floats.
inline constexpr uint32_t kUnpackedBlockBytes = 16 * 64 + 2 * 64;
/// Blocks along k that are unpacked at a time, and rows that pass over them.
inline constexpr uint32_t kChunkBlocks = 64;
inline constexpr uint32_t kRowBlock = 128;
inline constexpr uint32_t kUnpackedBytes = kChunkBlocks * kUnpackedBlockBytes;
/// Scratch of a thread: the unpacked chunk, and the partial sums of a block of rows.
inline constexpr uint32_t kLinearScratchBytes =
    kUnpackedBytes + kRowBlock * kRowGroup * sizeof(float);
/// How far ahead of the walk weights are asked for. A hardware prefetcher stops at pages of 4 KiB.
inline constexpr uint32_t kPrefetchBytes = 4096;

}  // namespace atlas::kernels
