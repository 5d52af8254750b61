// Blocks and grids of the core's GPU kernels: what gpu_shapes.h and the kernels must agree on.
// Nothing here changes a result.
#pragma once

#include <cstdint>

namespace atlas::kernels {

constexpr uint32_t blocks_of(uint64_t items, uint32_t of_a_block) {
  return static_cast<uint32_t>((items + of_a_block - 1) / of_a_block);
}

/// Elementwise kernels: a thread does four neighbouring elements of a row (or of a group of it).
inline constexpr uint32_t kQuadThreads = 256;
constexpr uint32_t quads_of(uint32_t n) { return n / 4 + (n % 4 != 0 ? 1 : 0); }
constexpr uint32_t quad_blocks(uint32_t groups, uint32_t n) {
  return blocks_of(uint64_t{groups} * quads_of(n), kQuadThreads);
}

/// `control_fetch`, `control_commit`, `draft_begin`: one block.
inline constexpr uint32_t kControlThreads = 512;
inline constexpr uint32_t kControlSharedBytes = 32 * sizeof(uint32_t);

/// `rope`: a block makes the angles of up to kRopePairs pairs and turns about kRopeItems pairs of
/// its row's heads.
inline constexpr uint32_t kRopeThreads = 256;
inline constexpr uint32_t kRopePairs = 256;
inline constexpr uint32_t kRopeItems = 1024;
inline constexpr uint32_t kRopeSharedBytes = 2 * kRopePairs * sizeof(float);
/// Heads of one block.
constexpr uint32_t rope_heads(uint32_t rotary_dim) {
  const uint32_t pairs = rotary_dim / 2 < kRopePairs ? rotary_dim / 2 : kRopePairs;
  return pairs == 0 || pairs >= kRopeItems ? 1 : kRopeItems / pairs;
}

/// `ngram_gate`: a block a row and stream; elements stand in shared memory kGateChunk at a time.
inline constexpr uint32_t kGateThreads = 128;
inline constexpr uint32_t kGateChunk = 2048;
inline constexpr uint32_t kGateSharedBytes = (2 * kGateChunk + 4) * sizeof(float);
inline constexpr uint32_t kKeysThreads = 1024;  // `ngram_keys`
/// `ngram_conv`: a thread does a channel of kConvRows rows.
inline constexpr uint32_t kConvThreads = 256;
inline constexpr uint32_t kConvRows = 16;

/// `route`: a warp a row. One warp a block: ptxas 13.0 spills a word in larger ones.
inline constexpr uint32_t kRouteThreads = 32;
/// `group_experts`: a block sorts the rows of kGroupedExperts experts; its warps share the rows.
inline constexpr uint32_t kGroupThreads = 1024;
inline constexpr uint32_t kGroupedExperts = 32;
inline constexpr uint32_t kGroupSharedBytes =
    ((kGroupThreads / 32) * (kGroupedExperts + 1) + 2 * kGroupedExperts + 4) * sizeof(uint32_t);

}  // namespace atlas::kernels
