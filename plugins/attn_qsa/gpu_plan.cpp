// Plans of plugin `qsa` for GPUs: what the workspace holds, and the records.
#include "plugins/attn_qsa/gpu_plan.h"

#include <algorithm>
#include <bit>
#include <string>

#include "kernels/common/gpu_qsa.h"
#include "plugins/attn_qsa/problem.h"

namespace atlas::qsa {
namespace {

/// What scores may take of the workspace: rows past it have records of their own that use the
/// memory again.
constexpr uint64_t kMaxScoreBytes = uint64_t{128} << 20;

/// What the workspace of a GPU holds, and where: partial sums at 0.
struct GpuWorkspace {
  const kernels::AttentionForm* form = nullptr;
  kernels::AttentionSplit split;
  uint32_t score_rows = 0;    // of a record
  uint64_t score_stride = 0;  // floats
  uint64_t lists = 0, scores = 0;
  uint64_t bytes = 0;
};

GpuWorkspace gpu_workspace_of(const AtlasAttentionProblem& problem) {
  const AtlasIndexer& indexer = *problem.indexer;
  const uint64_t places = std::min(uint64_t{problem.max_pages} * kernels::kGqaPageTokens,
                                   uint64_t{indexer.budget} + indexer.ratio - 1);
  const kernels::AttentionDevice device = kernels::attention_device(problem.platform);
  const kernels::AttentionForm& form = kernels::qsa_form(
      problem.head_dim, kernels::qsa_is_many(problem.max_rows, problem.kv_heads, device));
  const uint32_t row_tiles = kernels::qsa_row_tiles(form, problem.heads / problem.kv_heads);
  const uint32_t tiles = problem.max_rows * row_tiles;
  GpuWorkspace workspace;
  workspace.form = &form;
  if (form.teams == 1) {
    workspace.split = kernels::attention_split(tiles, problem.heads, problem.kv_heads,
                                               problem.head_dim, problem.max_rows, places, device);
  } else {
    workspace.split.tiles = (tiles + form.teams - 1) / form.teams;
  }
  workspace.bytes = kernels::align_up(workspace.split.partial_bytes, 256);
  if (!is_sparse(problem)) return workspace;
  workspace.lists = workspace.bytes;
  workspace.scores = kernels::align_up(
      workspace.lists + uint64_t{problem.max_rows} * budget_blocks_of(indexer) * sizeof(uint32_t),
      256);
  workspace.score_stride = kernels::qsa_gpu_score_floats(problem.max_pages, indexer.ratio);
  const uint64_t row_bytes = workspace.score_stride * sizeof(float);
  workspace.score_rows =
      static_cast<uint32_t>(std::clamp<uint64_t>(kMaxScoreBytes / row_bytes, 1, problem.max_rows));
  workspace.bytes = workspace.scores + workspace.score_rows * row_bytes;
  return workspace;
}

/// Scores and choices of rows [first_row, first_row + workspace.score_rows).
AtlasCode plan_gpu_selection(const AtlasAttentionProblem& problem, const GpuWorkspace& workspace,
                             uint32_t first_row, const AtlasRecordSink* sink, AtlasError* error) {
  const AtlasIndexer& indexer = *problem.indexer;
  const auto launch_of = [&](const char* kernel) {
    sdk::Launch<kernels::QsaGpuSelectParams> launch(kernel, kernels::kQsaGpuSelectParamsDigest);
    launch.point(&launch.params.q, indexer.q);
    launch.point(&launch.params.control, problem.control);
    launch.point(&launch.params.rows, problem.rows);
    launch.point(&launch.params.pages, problem.pages);
    launch.point(&launch.params.scores, behind(problem.workspace, workspace.scores));
    launch.point(&launch.params.lists, behind(problem.workspace, workspace.lists));
    launch.params.page_stride = problem.page_stride;
    launch.params.pooled_offset =
        kernels::qsa_gpu_pooled_offset(problem.kv_heads, problem.head_dim);
    launch.params.q_stride = indexer.q_stride;
    launch.params.score_stride = workspace.score_stride;
    launch.params.heads = indexer.heads;
    launch.params.head_dim = indexer.head_dim;
    launch.params.ratio = indexer.ratio;
    launch.params.budget_blocks = budget_blocks_of(indexer);
    launch.params.first_row = first_row;
    launch.params.row_limit = std::min(workspace.score_rows, problem.max_rows - first_row);
    return launch;
  };
  auto score = launch_of("qsa_score");
  const uint32_t rows = score.params.row_limit;
  const uint32_t tile_rows = kernels::qsa_score_tile_rows(indexer.heads);
  const uint32_t tiles = rows / tile_rows + std::min(rows, problem.max_sequences);
  const auto steps = static_cast<uint32_t>((workspace.score_stride + kernels::kQsaScoreBlocks - 1) /
                                           kernels::kQsaScoreBlocks);
  const uint32_t wanted = kernels::attention_device(problem.platform).wanted_blocks;
  score.grid(tiles, std::min((wanted + tiles - 1) / tiles, steps));
  score.block(kernels::kQsaScoreThreads);
  score.shared_bytes(kernels::qsa_score_shared_bytes(indexer.head_dim));
  if (const AtlasCode code = score.emit(sink, error); code != ATLAS_OK) return code;

  auto select = launch_of("qsa_select");
  select.grid(rows);
  select.block(kernels::kQsaSelectThreads);
  select.shared_bytes(kernels::kQsaSelectSharedBytes);
  return select.emit(sink, error);
}

}  // namespace

void check_gpu_indexer(const AtlasIndexer& indexer, const char* platform) {
  if (!std::has_single_bit(indexer.heads) || indexer.heads > kernels::kQsaGpuMaxHeads) {
    kChecks.refuse("indexer heads " + std::to_string(indexer.heads) + " on " + platform +
                   ": 1, 2, 4 and 8 are supported");
  }
  if (indexer.head_dim > kernels::kQsaGpuMaxIndexDim) {
    kChecks.refuse("indexer head_dim " + std::to_string(indexer.head_dim) + " on " + platform +
                   ": up to " + std::to_string(kernels::kQsaGpuMaxIndexDim) + " is supported");
  }
  if (indexer.ratio < kernels::kQsaGpuMinRatio) {
    kChecks.refuse("ratio " + std::to_string(indexer.ratio) + " on " + platform + ": at least " +
                   std::to_string(kernels::kQsaGpuMinRatio) +
                   " is supported, as four positions' values stand together");
  }
}

uint64_t gpu_workspace_bytes(const AtlasAttentionProblem& problem) {
  return gpu_workspace_of(problem).bytes;
}

AtlasCode plan_gpu(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                   AtlasError* error) {
  const GpuWorkspace workspace = gpu_workspace_of(problem);
  const kernels::AttentionSplit& split = workspace.split;
  auto write = write_launch(problem);
  write.grid(problem.max_rows);
  write.block(kernels::kAttentionWriteThreads);
  write.shared_bytes(kernels::qsa_write_shared_bytes(problem.indexer->head_dim));
  if (const AtlasCode code = write.emit(sink, error); code != ATLAS_OK) return code;
  if (is_sparse(problem)) {
    for (uint32_t row = 0; row < problem.max_rows; row += workspace.score_rows) {
      const AtlasCode code = plan_gpu_selection(problem, workspace, row, sink, error);
      if (code != ATLAS_OK) return code;
    }
  }

  const auto launch = [&](const char* kernel) {
    auto record = attend_launch(kernel, problem);
    record.point(&record.params.lists,
                 is_sparse(problem) ? behind(problem.workspace, workspace.lists) : kNowhere);
    return record;
  };
  const kernels::AttentionForm& form = *workspace.form;
  return emit_divided(launch, problem, form,
                      kernels::qsa_attend_shared_bytes(form, problem.head_dim), split, "qsa_merge",
                      sink, error);
}

}  // namespace atlas::qsa
