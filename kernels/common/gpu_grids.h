// What a record must agree on with the GPU kernels: block sizes, grids, shared memory, and the
// resident layouts that their matrix instructions want. Plain C++ for host and device; nothing here
// changes a result.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/device/fragments.h"
#include "kernels/common/linear.h"

namespace atlas::kernels {

/// `rms_norm`: a block a row and group: grid (rows, groups).
inline constexpr uint32_t kNormThreads = 128;
/// Elements of a group that stand in shared memory at a time; a multiple of the 16 lanes of the
/// sum.
inline constexpr uint32_t kNormChunk = 4096;
inline constexpr uint32_t kNormSharedBytes = (kNormChunk + 4) * sizeof(float);

/// `copy_groups`: grid (rows, groups). `add`, `silu_mul`: grid (rows, row_parts(n)).
inline constexpr uint32_t kRowThreads = 256;
inline constexpr uint32_t kRowPart = 1024;  // elements of a row that one block does
constexpr uint32_t row_parts(uint32_t n) { return n / kRowPart + (n % kRowPart != 0 ? 1 : 0); }

/// Products: a block does 16 outputs of 16 rows; its warps share the segments of k.
/// Grid (tiles of outputs, tiles of rows).
inline constexpr uint32_t kTileEdge = 16;  // outputs, rows, and elements of k of one step
inline constexpr uint32_t kLinearWarps = 8;
inline constexpr uint32_t kLinearThreads = kLinearWarps * device::kMatrixLanes;
inline constexpr uint32_t kLinearSharedBytes = kLinearWarps * kTileEdge * kTileEdge * sizeof(float);
constexpr uint32_t tiles_of(uint64_t count) {
  return static_cast<uint32_t>((count + kTileEdge - 1) / kTileEdge);
}

/// Contract "bf16_k16_s256": activations rounded to bf16; along k, segments of 256, each summed
/// from zero by matrix instructions of 16 elements in ascending k, float32 sums; segments are added
/// in ascending order in float32. The bits are those of a platform's instruction, the same for any
/// number of rows.
inline constexpr char kBf16Contract[] = "bf16_k16_s256";
inline constexpr uint32_t kBf16Segment = 256;

/// Resident bf16 weights: tiles of 16 outputs by 16 elements of k, 512 bytes each, k ascending
/// within a group of 16 outputs; outputs and elements past the matrix are 0. In a tile, for
/// mma.sync: the 16 bytes of lane 0 (words 0 to 3 of fragment A), of lane 1, ...; for WMMA: 16 rows
/// of 32 bytes.
enum class Bf16Tiles : uint32_t { kMmaSync, kWmma };
inline constexpr uint32_t kBf16TileBytes = kTileEdge * kTileEdge * 2;

constexpr uint64_t bf16_group_bytes(uint64_t k) { return uint64_t{tiles_of(k)} * kBf16TileBytes; }

/// 16 rows of a checkpoint (bf16, null: zeros) into one resident group.
inline void pack_bf16_tiles(Bf16Tiles tiles, const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  std::memset(out, 0, bf16_group_bytes(k));
  for (uint64_t tile = 0; tile < tiles_of(k); ++tile) {
    for (uint32_t i = 0; i < kBf16TileBytes / 2; ++i) {
      // Element i of the tile's bytes: of which row and k.
      device::Element at{i / kTileEdge, i % kTileEdge};
      if (tiles == Bf16Tiles::kMmaSync) at = device::mma_a_element(i / 8, i / 2 % 4, i % 2, 2);
      const uint64_t element = tile * kTileEdge + at.k;
      if (rows[at.row] == nullptr || element >= k) continue;
      std::memcpy(out + tile * kBf16TileBytes + 2 * i, rows[at.row] + 2 * element, 2);
    }
  }
}

}  // namespace atlas::kernels
