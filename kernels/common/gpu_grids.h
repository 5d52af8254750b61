// What a record must agree on with the GPU kernels over rows of activations: block sizes, grids,
// shared memory. Plain C++ for host and device; nothing here changes a result. Products have theirs
// in gpu_products.h.
#pragma once

#include <cstdint>

namespace atlas::kernels {

/// `rms_norm`: a block a row and group: grid (rows, groups).
inline constexpr uint32_t kNormThreads = 128;
/// Elements of a group that stand in shared memory at a time; a multiple of the 16 lanes of the
/// sum.
inline constexpr uint32_t kNormChunk = 4096;
inline constexpr uint32_t kNormSharedBytes = (kNormChunk + 4) * sizeof(float);
/// Groups of at most so many elements: four threads a group, which stays in their registers; a
/// block takes kNormThreads / kNormNarrowThreads groups, of one row after another.
inline constexpr uint32_t kNormNarrow = 256;
inline constexpr uint32_t kNormNarrowThreads = 4;

/// `copy_groups`: grid (rows, groups). `add`: grid (rows, row_parts(n)).
inline constexpr uint32_t kRowThreads = 256;
inline constexpr uint32_t kRowPart = 1024;  // elements of a row that one block does
constexpr uint32_t row_parts(uint32_t n) { return n / kRowPart + (n % kRowPart != 0 ? 1 : 0); }

}  // namespace atlas::kernels
