// Attention plugin `qsa`: grouped-query attention to blocks of positions that an indexer selects
// for each row, float32 on the CPU and bf16 on GPUs. The arithmetic and the layouts are in
// kernels/common/qsa.h and gpu_qsa.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/common/gpu_qsa.h"
#include "plugins/attn_qsa/gpu_plan.h"
#include "plugins/attn_qsa/problem.h"
#include "plugins/sdk/descriptor.h"

namespace {

namespace kernels = atlas::kernels;
using namespace atlas::qsa;

constexpr uint32_t kMaxBudget = 1u << 20;
constexpr uint64_t kMaxBlocks = uint64_t{1} << 22;  // of one sequence
/// What scores may take of the workspace: rows past it are scored by one task each.
constexpr uint64_t kMaxScoreBytes = uint64_t{16} << 20;

/// What the CPU's workspace holds, and where: what divides rows, then as the offsets say.
struct Workspace {
  Split split;
  uint32_t score_rows = 0;
  uint64_t score_stride = 0;  // floats
  uint64_t lists = 0, scores = 0;
  uint64_t bytes = 0;
};

Workspace workspace_of(const AtlasAttentionProblem& problem) {
  const AtlasIndexer& indexer = *problem.indexer;
  const uint64_t places = std::min(uint64_t{problem.max_pages} * kernels::kGqaPageTokens,
                                   uint64_t{indexer.budget} + indexer.ratio - 1);
  Workspace workspace;
  workspace.split = split_of(
      problem,
      static_cast<uint32_t>((places + kernels::kGqaBlockTokens - 1) / kernels::kGqaBlockTokens));
  workspace.bytes = kernels::align_up(workspace.split.bytes, 256);
  if (!is_sparse(problem)) return workspace;
  workspace.lists = workspace.bytes;
  workspace.scores = kernels::align_up(
      workspace.lists + uint64_t{problem.max_rows} * budget_blocks_of(indexer) * sizeof(uint32_t),
      256);
  workspace.score_stride = kernels::qsa_score_floats(problem.max_pages, indexer.ratio);
  const uint64_t row_bytes = workspace.score_stride * sizeof(float);
  workspace.score_rows =
      static_cast<uint32_t>(std::min<uint64_t>(problem.max_rows, kMaxScoreBytes / row_bytes));
  workspace.bytes = workspace.scores + workspace.score_rows * row_bytes;
  return workspace;
}

uint64_t workspace_bytes_of(const AtlasAttentionProblem& problem) {
  return is_gpu(problem) ? gpu_workspace_bytes(problem) : workspace_of(problem).bytes;
}

void check_indexer(const AtlasAttentionProblem& problem) {
  if (problem.indexer == nullptr)
    kChecks.refuse("the problem has no indexer: backend gqa is dense");
  const AtlasIndexer& indexer = *problem.indexer;
  if (indexer.struct_size < sizeof(AtlasIndexer)) {
    kChecks.refuse("the indexer has " + std::to_string(indexer.struct_size) + " bytes, and " +
                   std::to_string(sizeof(AtlasIndexer)) + " are expected");
  }
  const auto check_size = [](const char* name, uint32_t size, uint32_t most) {
    if (size != 0 && size <= most) return;
    kChecks.refuse(std::string(name) + " " + std::to_string(size) + ": 1 to " +
                   std::to_string(most) + " is supported");
  };
  check_size("indexer heads", indexer.heads, kernels::kQsaMaxHeads);
  check_size("indexer head_dim", indexer.head_dim, kernels::kQsaMaxIndexDim);
  check_size("budget", indexer.budget, kMaxBudget);
  if (!std::has_single_bit(indexer.ratio) || indexer.ratio > kernels::kQsaAnchorTokens) {
    kChecks.refuse("ratio " + std::to_string(indexer.ratio) + ": a power of two up to " +
                   std::to_string(kernels::kQsaAnchorTokens) +
                   " is supported, as anchors stand at ends of blocks");
  }
  if (indexer.budget % indexer.ratio != 0) {
    kChecks.refuse("a budget of " + std::to_string(indexer.budget) + " is not whole blocks of " +
                   std::to_string(indexer.ratio));
  }
  if (indexer.rotary_dim % 2 != 0 || indexer.rotary_dim > indexer.head_dim) {
    kChecks.refuse("rotary_dim " + std::to_string(indexer.rotary_dim) +
                   " of the indexer: an even number " + "up to its head_dim " +
                   std::to_string(indexer.head_dim) + " is supported");
  }
  if (is_gpu(problem)) check_gpu_indexer(indexer, problem.platform);
  if (uint64_t{problem.max_pages} * kernels::qsa_page_blocks(indexer.ratio) > kMaxBlocks) {
    kChecks.refuse(std::to_string(problem.max_pages) + " pages of a sequence are more than " +
                   std::to_string(kMaxBlocks) + " blocks");
  }
}

void check_shape(const AtlasAttentionProblem& problem) {
  kChecks.shape(problem);
  check_indexer(problem);
}

uint64_t page_bytes_of(const AtlasAttentionProblem& problem) {
  if (is_gpu(problem)) {
    return kernels::qsa_gpu_page_bytes(problem.kv_heads, problem.head_dim,
                                       problem.indexer->head_dim, problem.indexer->ratio);
  }
  return kernels::qsa_page_floats(problem.kv_heads, problem.head_dim, problem.indexer->head_dim,
                                  problem.indexer->ratio) *
         sizeof(float);
}
uint64_t slot_bytes_of(const AtlasIndexer& indexer) {
  return uint64_t{kernels::qsa_ring_rows(indexer.ratio)} * indexer.head_dim * sizeof(float);
}

void check_plan(const AtlasAttentionProblem& problem) {
  const AtlasIndexer& indexer = *problem.indexer;
  kChecks.plan(problem, page_bytes_of(problem));
  kChecks.stride("the indexer's q", indexer.q_stride, indexer.heads, indexer.head_dim);
  kChecks.stride("the indexer's k", indexer.k_stride, 1, indexer.head_dim);
  if (!std::isfinite(indexer.epsilon) || indexer.epsilon < 0 || !std::isfinite(indexer.magnitude)) {
    kChecks.refuse(
        "the indexer's epsilon or magnitude is not a finite number, or the first is negative");
  }
  if (problem.slot_stride < slot_bytes_of(indexer) || problem.slot_stride % alignof(float) != 0) {
    kChecks.refuse("slot_stride " + std::to_string(problem.slot_stride) + ": a layer's part has " +
                   std::to_string(slot_bytes_of(indexer)) + " bytes of float32");
  }
  for (const AtlasBufferRef& ref :
       {problem.rows, problem.slots, indexer.q, indexer.k, indexer.k_norm}) {
    if (ref.buffer == ATLAS_NO_BUFFER) {
      kChecks.refuse("one of rows, slots and the indexer's q, k and k_norm has no buffer");
    }
  }
  if (indexer.rotary_dim != 0 && indexer.inverse_frequencies.buffer == ATLAS_NO_BUFFER) {
    kChecks.refuse("the indexer's inverse_frequencies have no buffer");
  }
  kChecks.workspace(problem, workspace_bytes_of(problem));
}

AtlasCode needs(const AtlasAttentionProblem* problem, AtlasAttentionNeeds* needs,
                AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || needs == nullptr ||
        needs->struct_size < sizeof(AtlasAttentionNeeds)) {
      kChecks.refuse("needs was called without room for an answer");
    }
    check_shape(*problem);
    const AtlasIndexer& indexer = *problem->indexer;
    needs->page_tokens = kernels::kGqaPageTokens;
    needs->bytes_per_page = page_bytes_of(*problem);
    needs->workspace_bytes = workspace_bytes_of(*problem);
    needs->bytes_per_slot = slot_bytes_of(indexer);
    needs->bytes_per_anchor = 0;
    needs->anchor_tokens = kernels::kQsaAnchorTokens;
    const bool gpu = is_gpu(*problem);
    atlas::sdk::copy_text(needs->contract, gpu ? kernels::kQsaGpuContract : "qsa_f32_b256");
    atlas::sdk::copy_text(
        needs->state_layout,
        std::string(gpu ? "qsa bf16 k8 v4 " : "qsa f32 k4t v16 ") +
            std::to_string(problem->kv_heads) + "x" + std::to_string(problem->head_dim) +
            " index " + std::to_string(indexer.head_dim) + "/" + std::to_string(indexer.ratio));
    return AtlasCode{ATLAS_OK};
  });
}

AtlasCode plan_write(const AtlasAttentionProblem& problem, const Workspace& workspace,
                     const AtlasRecordSink* sink, AtlasError* error) {
  auto write = write_launch(problem);
  write.point(&write.params.arrivals, workspace.split.rows != 0 ? problem.workspace : kNowhere);
  write.params.split_rows = workspace.split.rows;
  write.grid((problem.max_rows - 1) / kernels::kQsaWriteRows + 1);
  return write.emit(sink, error);
}

AtlasCode plan_select(const char* kernel, uint64_t scratch_bytes,
                      const AtlasAttentionProblem& problem, const Workspace& workspace,
                      const AtlasRecordSink* sink, AtlasError* error) {
  const AtlasIndexer& indexer = *problem.indexer;
  atlas::sdk::Launch<kernels::QsaSelectParams> select(kernel, kernels::kQsaSelectParamsDigest);
  select.point(&select.params.q, indexer.q);
  select.point(&select.params.control, problem.control);
  select.point(&select.params.rows, problem.rows);
  select.point(&select.params.pages, problem.pages);
  select.point(&select.params.scores,
               workspace.score_rows != 0 ? behind(problem.workspace, workspace.scores) : kNowhere);
  select.point(&select.params.lists, behind(problem.workspace, workspace.lists));
  select.params.page_stride = problem.page_stride;
  select.params.pooled_offset = kernels::qsa_pooled_offset(problem.kv_heads, problem.head_dim);
  select.params.q_stride = indexer.q_stride;
  select.params.score_stride = workspace.score_stride;
  select.params.heads = indexer.heads;
  select.params.head_dim = indexer.head_dim;
  select.params.ratio = indexer.ratio;
  select.params.budget_blocks = budget_blocks_of(indexer);
  select.params.score_rows = workspace.score_rows;
  select.params.tasks = tasks_of(problem);
  select.grid(select.params.tasks);
  select.shared_bytes(static_cast<uint32_t>(scratch_bytes));
  return select.emit(sink, error);
}

AtlasCode plan_selection(const AtlasAttentionProblem& problem, const Workspace& workspace,
                         const AtlasRecordSink* sink, AtlasError* error) {
  const AtlasIndexer& indexer = *problem.indexer;
  if (workspace.score_rows != 0) {
    const AtlasCode code =
        plan_select("qsa_score", kernels::qsa_score_scratch_bytes(indexer.heads, indexer.ratio),
                    problem, workspace, sink, error);
    if (code != ATLAS_OK) return code;
  }
  const uint64_t own_floats = workspace.score_rows < problem.max_rows ? workspace.score_stride : 0;
  return plan_select("qsa_select",
                     kernels::qsa_select_scratch_bytes(indexer.heads, indexer.ratio, own_floats),
                     problem, workspace, sink, error);
}

AtlasCode plan_attend(const AtlasAttentionProblem& problem, const Workspace& workspace,
                      const AtlasRecordSink* sink, AtlasError* error) {
  auto attend = attend_launch("qsa_attend", problem);
  const bool is_split = workspace.split.rows != 0;
  attend.point(&attend.params.lists,
               is_sparse(problem) ? behind(problem.workspace, workspace.lists) : kNowhere);
  attend.point(&attend.params.arrivals, is_split ? problem.workspace : kNowhere);
  attend.point(&attend.params.partials,
               is_split ? behind(problem.workspace, workspace.split.partials) : kNowhere);
  attend.params.tasks = tasks_of(problem);
  attend.params.split_rows = workspace.split.rows;
  attend.params.max_blocks = workspace.split.max_blocks;
  attend.grid(attend.params.tasks);
  attend.shared_bytes(static_cast<uint32_t>(
      kernels::qsa_attend_scratch_bytes(problem.heads, problem.kv_heads, problem.head_dim)));
  return attend.emit(sink, error);
}

AtlasCode plan_cpu(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                   AtlasError* error) {
  const Workspace workspace = workspace_of(problem);
  AtlasCode code = plan_write(problem, workspace, sink, error);
  if (code == ATLAS_OK && is_sparse(problem)) {
    code = plan_selection(problem, workspace, sink, error);
  }
  if (code == ATLAS_OK) code = plan_attend(problem, workspace, sink, error);
  return code;
}

AtlasCode plan(const AtlasAttentionProblem* problem, const AtlasRecordSink* sink,
               AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || sink == nullptr || sink->emit == nullptr) {
      kChecks.refuse("plan was called without a problem or a sink");
    }
    check_shape(*problem);
    check_plan(*problem);
    return is_gpu(*problem) ? plan_gpu(*problem, sink, error) : plan_cpu(*problem, sink, error);
  });
}

constexpr AtlasAttentionApi kApi = {
    .struct_size = sizeof(AtlasAttentionApi),
    .reserved = 0,
    .needs = needs,
    .plan = plan,
};

constexpr AtlasPlugin kPlugin = atlas::sdk::attention_plugin(&kApi);

/// Every kernel of every platform: a plan takes the form that fits.
consteval auto required_kernels() {
  constexpr std::array kGpuPlatforms = {"h200", "gb10", "strix-hip"};
  constexpr size_t kForms = std::size(kernels::kQsaForms);
  std::array<AtlasDescriptorKernel, 4 + kGpuPlatforms.size() * (4 + kForms)> all{};
  size_t count = 0;
  const auto need = [&](const char* platform, const char* kernel, uint64_t digest) consteval {
    all[count++] = atlas::sdk::required_kernel(platform, kernel, digest);
  };
  need("cpu", "qsa_write", kernels::kQsaWriteParamsDigest);
  need("cpu", "qsa_score", kernels::kQsaSelectParamsDigest);
  need("cpu", "qsa_select", kernels::kQsaSelectParamsDigest);
  need("cpu", "qsa_attend", kernels::kQsaAttendParamsDigest);
  for (const char* platform : kGpuPlatforms) {
    need(platform, "qsa_write", kernels::kQsaWriteParamsDigest);
    need(platform, "qsa_score", kernels::kQsaGpuSelectParamsDigest);
    need(platform, "qsa_select", kernels::kQsaGpuSelectParamsDigest);
    for (const kernels::AttentionForm& form : kernels::kQsaForms) {
      need(platform, form.kernel, kernels::kQsaAttendParamsDigest);
    }
    need(platform, "qsa_merge", kernels::kQsaAttendParamsDigest);
  }
  return all;
}

}  // namespace

ATLAS_DESCRIPTOR(atlas::sdk::describe(
    atlas::sdk::Identity{ATLAS_KIND_ATTENTION, "qsa", "0.1.0", "Apache-2.0"},
    std::array<std::string_view, 4>{"cpu", "h200", "gb10", "strix-hip"}, required_kernels()));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(kPlugin, host, error);
}
