// What records and kernels of sparse attention on GPUs agree on, beside gpu_attention.h: the
// contract, resident index keys, scores and the choice of blocks. Plain C++ for host and device.
#pragma once

#include "kernels/common/gpu_attention.h"
#include "kernels/common/qsa.h"

namespace atlas::kernels {

/// Contract "qsa_bf16_b256": index keys are made as `qsa_write` has it and rounded to bf16. A query
/// element is the sum of two bf16 numbers, hi = bf16(q) and lo = bf16(q - hi); a head's score of a
/// block is (hi . key) + (lo . key), each by matrix instructions over d ascending, 32 elements at a
/// time, in float32; a block's score is the sum of what is above 0, over heads pairwise. Blocks are
/// chosen from scores exactly as qsa.h says, and attended to with the arithmetic of
/// `gqa_bf16_b256`, with places of the row's list for positions; where all blocks are chosen the
/// bits are those of gqa.
inline constexpr char kQsaGpuContract[] = "qsa_bf16_b256";

/// Blocks of positions are whole groups of four, which values stand in.
inline constexpr uint32_t kQsaGpuMinRatio = 4;
/// Index heads: a power of two up to this; elements of one, at most.
inline constexpr uint32_t kQsaGpuMaxHeads = 8;
inline constexpr uint32_t kQsaGpuMaxIndexDim = 256;

/// After the kv heads of a layer's part of a page: index keys of its blocks, bf16, in the layout of
/// keys: [blocks / 8, dims / 32, 8, 32].
constexpr uint64_t qsa_gpu_pooled_offset(uint32_t kv_heads, uint32_t head_dim) {
  return uint64_t{kv_heads} * attention_head_bytes(head_dim);
}
constexpr uint64_t qsa_gpu_page_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t index_dim,
                                      uint32_t ratio) {
  return qsa_gpu_pooled_offset(kv_heads, head_dim) +
         (qsa_page_blocks(ratio) + 7) / 8 * (16 * uint64_t{attention_dims(index_dim)});
}

/// qsa_write: shared memory for one index key, and its scale.
constexpr uint32_t qsa_write_shared_bytes(uint32_t index_dim) { return (index_dim + 4) * 4; }

/// qsa_score: a block of 8 warps takes some rows, whose queries are tiles of 8 query heads, hi and
/// lo; a warp takes 32 blocks of positions at a time.
inline constexpr uint32_t kQsaScoreWarps = 8;
inline constexpr uint32_t kQsaScoreThreads = 32 * kQsaScoreWarps;
inline constexpr uint32_t kQsaScoreTiles = 4;
inline constexpr uint32_t kQsaScoreBlocks = 32 * kQsaScoreWarps;  // at a time
constexpr uint32_t qsa_score_tile_rows(uint32_t heads) { return kQsaScoreTiles * 8 / heads; }
constexpr uint32_t qsa_score_shared_bytes(uint32_t index_dim) {
  return kQsaScoreTiles * 16 * attention_query_pitch(index_dim);
}
/// Floats of one row's scores.
constexpr uint64_t qsa_gpu_score_floats(uint32_t max_pages, uint32_t ratio) {
  return align_up(uint64_t{max_pages} * qsa_page_blocks(ratio), 16);
}

/// qsa_select: a block of threads chooses for a row.
inline constexpr uint32_t kQsaSelectThreads = 1024;
inline constexpr uint32_t kQsaSelectBins = 2048;
inline constexpr uint32_t kQsaSelectSharedBytes = (kQsaSelectBins + 3 * 32 + 8) * 4;

/// Tiles that a block of qsa_attend_many_256 takes in step.
inline constexpr uint32_t kQsaTeams = 3;

/// The forms of the attend kernels: a tile is the rows of a sequence that see everything before
/// them, as gqa's, or one row that has a list. The last one is for many rows, and heads of 256.
inline constexpr AttentionForm kQsaForms[] = {{"qsa_attend_64", 64, 4, 1},
                                              {"qsa_attend_128", 128, 8, 1},
                                              {"qsa_attend_256", 256, 8, 1},
                                              {"qsa_attend_many_256", 256, 4, 1, kQsaTeams}};
constexpr const AttentionForm& qsa_form(uint32_t head_dim, bool many) {
  return kQsaForms[head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : many && head_dim == 256 ? 3 : 2];
}
/// Whether the form for many rows serves a bucket of `rows` rows: several of its blocks for each
/// multiprocessor then have work, undivided.
constexpr bool qsa_is_many(uint32_t rows, uint32_t kv_heads, const AttentionDevice& device) {
  return uint64_t{rows} * kv_heads >= uint64_t{2} * device.wanted_blocks;
}
constexpr uint32_t qsa_row_tiles(const AttentionForm& form, uint32_t group) {
  return (group + form.query_rows() - 1) / form.query_rows();
}
/// Of a team: attention_shared_bytes, where the keys and values of four places stand, for two
/// blocks, and what it keeps of its tile.
inline constexpr uint32_t kQsaTileBytes = 64;
inline constexpr uint32_t kQsaQuads = kGqaBlockTokens / 4;
constexpr uint32_t qsa_team_bytes(const AttentionForm& form, uint32_t head_dim) {
  return attention_shared_bytes(form, head_dim) + 2 * 2 * kQsaQuads * 8 + kQsaTileBytes;
}
/// Of a block: what its teams have, and how many blocks each walks.
constexpr uint32_t qsa_attend_shared_bytes(const AttentionForm& form, uint32_t head_dim) {
  return form.teams * qsa_team_bytes(form, head_dim) + (form.teams == 1 ? 0 : 16);
}

// The formatter would take the members of parameter structs for arguments.
// clang-format off

/// `qsa_score` and `qsa_select` on GPUs, for rows [first_row, first_row + row_limit) of the step;
/// what they compute is as QsaSelectParams has it. Grids: qsa_score (tiles, tasks), where the tasks of
/// a tile divide its blocks; qsa_select (row_limit).
ATLAS_CONTROL_PARAMS(QsaGpuSelectParams,
  const float* q;  // [m, heads, head_dim]: normed and rotated
  const StepControl* control;
  const RowSet* rows;
  const unsigned char* pages;
  float* scores;    // [row_limit, score_stride]
  uint32_t* lists;  // [m, budget_blocks]
  uint64_t page_stride;
  uint64_t pooled_offset;  // bytes
  uint64_t q_stride;
  uint64_t score_stride;
  uint32_t heads;
  uint32_t head_dim;
  uint32_t ratio;
  uint32_t budget_blocks;
  uint32_t first_row;
  uint32_t row_limit;
);

// clang-format on

}  // namespace atlas::kernels
