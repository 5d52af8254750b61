// What records and kernels of attention on GPUs agree on: the contract, resident pages of bf16 keys
// and values, tiles of query rows, shared memory, partial sums. Plain C++ for host and device.
#pragma once

#include <string_view>

#include "kernels/common/gqa.h"

namespace atlas::kernels {

/// Contract "gqa_bf16_b256", for a query row (one head of one row): q, k and v are rounded to bf16.
/// Blocks of 256 positions. In a block, scores are (q . k) * (scale * log2 e), dot products by
/// matrix instructions over d ascending, 32 elements at a time, in float32; m is the maximum of
/// those that the row sees; weights are w = bf16(2^(s - m)), by the platform's own instruction; l
/// is the sum of weights: of each 32 positions, these ascending; o is the sum of w v by matrix
/// instructions over positions ascending, 32 at a time, from zero. Blocks are joined in ascending
/// order as `gqa_f32_b256` has it, with 2^x for e^x. So a row's bits do not depend on other rows,
/// nor on who computes which block; they are those of a platform's instructions.
inline constexpr char kGqaGpuContract[] = "gqa_bf16_b256";

/// Elements of a head as they stand in pages: padded with zeros to whole groups of 32.
constexpr uint32_t attention_dims(uint32_t head_dim) { return (head_dim + 31) / 32 * 32; }
inline constexpr uint32_t kAttentionMaxDim = 256;

/// A layer's part of a page is, for each kv head, keys [8, dims / 32, 8, 32] (eight positions stand
/// together, and 32 elements of each: 512 bytes that a warp loads at once), then values [16, dims,
/// 4]: an element of four positions stands together, so that blocks of four positions are whole
/// pieces of memory and no value has to cross lanes. bf16.
///
/// Values are finite. Where a value of a row is not, it stands as 0 and the row's key is NaN in
/// this head: so whoever sees the position gets NaN, and a weight of 0 hides it from all others. In
/// the four positions that hold a sequence's last one, those after it are 0 or what stood there
/// before.
constexpr uint32_t attention_head_bytes(uint32_t head_dim) {
  return kGqaPageTokens * attention_dims(head_dim) * 2 * 2;
}
constexpr uint32_t attention_key_offset(uint32_t place, uint32_t dims) {
  return place / 8 * (16 * dims) + place % 8 * 64;  // and 512 bytes for each 32 elements before
}
constexpr uint32_t attention_value_offset(uint32_t place, uint32_t dims) {
  return kGqaPageTokens * dims * 2 + place / 4 * (8 * dims);  // and 8 bytes an element
}

inline constexpr uint32_t kAttentionWriteThreads = 128;
inline constexpr uint32_t kAttentionMergeThreads = 128;
inline constexpr uint32_t kAttentionMergeSharedBytes = kAttentionMergeThreads * 2 * sizeof(float);

/// One form of the attend kernels: all have the same bits. A block of `warps` warps takes `tiles`
/// times 16 query rows of one sequence and kv head; a query row is row v / group of the sequence's
/// rows, head v % group.
struct AttentionForm {
  const char* kernel;
  uint32_t max_dim;
  uint32_t warps;
  uint32_t tiles;
  uint32_t teams = 1;  // groups of `warps` warps, each with tiles of its own

  constexpr uint32_t threads() const { return 32 * warps * teams; }
  constexpr uint32_t query_rows() const { return 16 * tiles; }
};
inline constexpr AttentionForm kGqaForms[] = {
    {"gqa_attend_64", 64, 4, 1},        {"gqa_attend_128", 128, 8, 1},
    {"gqa_attend_256", 256, 8, 1},      {"gqa_attend_tall_64", 64, 8, 4},
    {"gqa_attend_tall_128", 128, 8, 3}, {"gqa_attend_tall_256", 256, 8, 2},
};

/// The form for a head size: `tall` where more than 16 query rows of a sequence come together.
constexpr const AttentionForm& gqa_form(uint32_t head_dim, bool tall) {
  const uint32_t size = head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : 2;
  return kGqaForms[size + (tall ? 3 : 0)];
}

/// Shared memory: weights of a block [query rows, 256] bf16, maxima [warps, query rows], [query
/// rows], sums of weights [8, query rows], queries [query rows, dims] bf16 in rows of whole 128
/// bytes.
inline constexpr uint32_t kAttentionSums = kGqaBlockTokens / 32;
constexpr uint32_t attention_query_pitch(uint32_t head_dim) { return (head_dim + 63) / 64 * 128; }
constexpr uint32_t attention_shared_bytes(const AttentionForm& form, uint32_t head_dim) {
  return form.query_rows() * (kGqaBlockTokens * 2 + (form.warps + 1 + kAttentionSums) * 4 +
                              attention_query_pitch(head_dim));
}

/// A block's state of one query row where blocks are joined by `gqa_merge`: the value sum [dims],
/// maximum, weight sum, two floats of padding.
constexpr uint32_t attention_partial_floats(uint32_t head_dim) {
  return attention_dims(head_dim) + 4;
}

/// Whether the tall form serves a bucket: buckets of up to 8 rows may be one sequence's verify
/// step, larger ones are a row a sequence where they have no more rows than there are sequences.
constexpr bool attention_is_tall(uint32_t group, uint32_t rows, uint32_t sequences) {
  if (uint64_t{rows} * group <= 16) return false;
  return rows <= kMaxVerifyRows || rows > sequences;
}

/// Tiles that a step of `rows` rows of up to `sequences` sequences can have.
constexpr uint32_t attention_tiles(const AttentionForm& form, uint32_t group, uint32_t rows,
                                   uint32_t sequences) {
  const uint64_t whole = uint64_t{rows} * group / form.query_rows();
  return static_cast<uint32_t>(whole + (sequences < rows ? sequences : rows));
}

/// Of a platform: blocks of threads that fill it, and what partial sums may take of its memory.
struct AttentionDevice {
  uint32_t wanted_blocks;
  uint64_t most_partial_bytes;
};
constexpr AttentionDevice attention_device(std::string_view platform) {
  if (platform == "h200") return {512, uint64_t{128} << 20};  // 132 multiprocessors
  return {192, uint64_t{64} << 20};                           // gb10 and strix-hip have 48 and 40
}

/// How a bucket's blocks are divided: tasks for each tile, so that there is work for all of the
/// device, and the partial sums that this needs.
struct AttentionSplit {
  uint32_t tiles = 1;
  uint32_t tasks = 1;
  uint32_t split_rows = 0;  // 0: a tile's blocks are one block of threads' and nothing is merged
  uint32_t max_blocks = 1;
  uint64_t partial_bytes = 0;
};

/// `tiles`: of the bucket, for a kv head; `max_places`: what a row may see at most.
constexpr AttentionSplit attention_split(uint32_t tiles, uint32_t heads, uint32_t kv_heads,
                                         uint32_t head_dim, uint32_t rows, uint64_t max_places,
                                         const AttentionDevice& device) {
  AttentionSplit split;
  split.tiles = tiles;
  split.max_blocks = static_cast<uint32_t>((max_places + kGqaBlockTokens - 1) / kGqaBlockTokens);
  const uint64_t others = uint64_t{tiles} * kv_heads;
  const uint64_t tasks = (device.wanted_blocks + others - 1) / others;
  const uint64_t bytes = uint64_t{rows} * heads * split.max_blocks *
                         attention_partial_floats(head_dim) * sizeof(float);
  if (split.max_blocks < 2 || tasks < 2 || bytes > device.most_partial_bytes) return split;
  split.tasks = tasks < split.max_blocks ? static_cast<uint32_t>(tasks) : split.max_blocks;
  split.split_rows = rows;
  split.partial_bytes = bytes;
  return split;
}

}  // namespace atlas::kernels
