// Attention plugin `gqa`: causal grouped-query attention over paged keys and values, float32 on the
// CPU and bf16 on GPUs. The arithmetic and the layouts are in kernels/common/gqa.h and
// gpu_attention.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/common/gpu_attention.h"
#include "kernels/common/gqa.h"
#include "kernels/common/platforms.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

namespace {

namespace kernels = atlas::kernels;
using atlas::sdk::Failure;

constexpr uint32_t kMaxHeads = 4096;
constexpr uint32_t kMaxHeadDim = 1024;
/// Rows whose blocks may be computed by several tasks, and the workspace that this may cost: decode
/// and verify steps have few rows, and prefill steps have tasks enough without.
constexpr uint32_t kMaxSplitRows = 64;
constexpr uint64_t kMaxPartialBytes = uint64_t{16} << 20;

[[noreturn]] void refuse(const std::string& message) {
  throw Failure(ATLAS_INVALID_ARGUMENT, "gqa: " + message);
}

bool is_gpu(const AtlasAttentionProblem& problem) { return kernels::is_gpu(problem.platform); }

/// Bytes of a layer's part of a page.
uint64_t page_bytes_of(const AtlasAttentionProblem& problem) {
  if (is_gpu(problem)) {
    return uint64_t{problem.kv_heads} * kernels::attention_head_bytes(problem.head_dim);
  }
  return problem.kv_heads * kernels::gqa_head_floats(problem.head_dim) * sizeof(float);
}

/// What the workspace holds, and where. The CPU's.
struct Workspace {
  uint32_t split_rows = 0;
  uint32_t max_blocks = 0;
  uint64_t partials = 0;  // offset; arrivals are at 0
  uint64_t bytes = 0;
};

Workspace workspace_of(const AtlasAttentionProblem& problem) {
  constexpr uint32_t kPages = kernels::kGqaBlockTokens / kernels::kGqaPageTokens;
  Workspace workspace;
  workspace.max_blocks = problem.max_pages / kPages + (problem.max_pages % kPages != 0 ? 1 : 0);
  if (workspace.max_blocks < 2) return workspace;  // nothing to split
  const uint64_t row_bytes = uint64_t{problem.heads} * workspace.max_blocks *
                             kernels::gqa_partial_floats(problem.head_dim) * sizeof(float);
  workspace.split_rows = static_cast<uint32_t>(
      std::min<uint64_t>({problem.max_rows, kMaxSplitRows, kMaxPartialBytes / row_bytes}));
  if (workspace.split_rows == 0) return workspace;
  workspace.partials =
      kernels::align_up(uint64_t{workspace.split_rows} * problem.kv_heads * sizeof(uint32_t), 256);
  workspace.bytes = workspace.partials + workspace.split_rows * row_bytes;
  return workspace;
}

/// How a GPU's records divide the work; its partial sums are the workspace.
struct GpuForm {
  const kernels::AttentionForm& form;
  kernels::AttentionSplit split;
};
GpuForm gpu_form_of(const AtlasAttentionProblem& problem) {
  const uint32_t group = problem.heads / problem.kv_heads;
  const kernels::AttentionForm& form = kernels::gqa_form(
      problem.head_dim, kernels::attention_is_tall(group, problem.max_rows, problem.max_sequences));
  const uint32_t tiles =
      kernels::attention_tiles(form, group, problem.max_rows, problem.max_sequences);
  return {form, kernels::attention_split(tiles, problem.heads, problem.kv_heads, problem.head_dim,
                                         problem.max_rows,
                                         uint64_t{problem.max_pages} * kernels::kGqaPageTokens,
                                         kernels::attention_device(problem.platform))};
}

uint64_t workspace_bytes_of(const AtlasAttentionProblem& problem) {
  return is_gpu(problem) ? gpu_form_of(problem).split.partial_bytes : workspace_of(problem).bytes;
}

/// Tasks of gqa_attend: several for each thread of any CPU, and no more than could have work.
uint32_t tasks_of(const AtlasAttentionProblem& problem) {
  const uint64_t rows = uint64_t{problem.max_rows} * problem.kv_heads;
  return static_cast<uint32_t>(std::bit_ceil(std::clamp<uint64_t>(rows, 32, 128)));
}

/// Refuses shapes that no kernel could serve; what only `plan` needs is not looked at.
void check_shape(const AtlasAttentionProblem& problem) {
  if (problem.struct_size < sizeof(AtlasAttentionProblem)) {
    refuse("the problem has " + std::to_string(problem.struct_size) + " bytes, and " +
           std::to_string(sizeof(AtlasAttentionProblem)) + " are expected");
  }
  if (problem.platform == nullptr || kernels::find_platform(problem.platform) == nullptr) {
    refuse("platform '" + std::string(problem.platform == nullptr ? "" : problem.platform) +
           "' is not supported: cpu, h200, gb10 and strix-hip are");
  }
  if (problem.backend == nullptr || std::string_view(problem.backend) != "gqa") {
    refuse("backend '" + std::string(problem.backend == nullptr ? "" : problem.backend) +
           "' is not this plugin's: gqa is");
  }
  if (problem.heads == 0 || problem.heads > kMaxHeads || problem.kv_heads == 0 ||
      problem.heads % problem.kv_heads != 0) {
    refuse(std::to_string(problem.heads) + " query heads over " + std::to_string(problem.kv_heads) +
           " key heads: the second must divide the first, which is at most " +
           std::to_string(kMaxHeads));
  }
  if (problem.head_dim == 0 || problem.head_dim > kMaxHeadDim) {
    refuse("head_dim " + std::to_string(problem.head_dim) + ": 1 to " +
           std::to_string(kMaxHeadDim) + " is supported");
  }
  if (is_gpu(problem) &&
      (problem.head_dim % 16 != 0 || problem.head_dim > kernels::kAttentionMaxDim)) {
    refuse("head_dim " + std::to_string(problem.head_dim) + " on " + problem.platform +
           ": multiples of 16 up to " + std::to_string(kernels::kAttentionMaxDim) +
           " are supported");
  }
  if (problem.max_rows == 0) refuse("a step needs at least one row");
}

void check_plan(const AtlasAttentionProblem& problem) {
  const auto check_stride = [](const char* name, uint64_t stride, uint64_t heads, uint64_t dim) {
    if (stride < heads * dim) {
      refuse(std::string(name) + "_stride " + std::to_string(stride) + " is less than a row of " +
             std::to_string(heads) + " heads of " + std::to_string(dim));
    }
  };
  check_stride("q", problem.q_stride, problem.heads, problem.head_dim);
  check_stride("k", problem.k_stride, problem.kv_heads, problem.head_dim);
  check_stride("v", problem.v_stride, problem.kv_heads, problem.head_dim);
  check_stride("out", problem.out_stride, problem.heads, problem.head_dim);
  if (!std::isfinite(problem.scale)) refuse("the scale is not a finite number");
  if (problem.max_pages == 0) refuse("a sequence needs at least one page");
  const uint64_t page_bytes = page_bytes_of(problem);
  const uint64_t alignment = is_gpu(problem) ? 16 : alignof(float);
  if (problem.page_stride < page_bytes || problem.page_stride % alignment != 0 ||
      problem.pages.offset % alignment != 0) {
    refuse("page_stride " + std::to_string(problem.page_stride) + ": a layer's part has " +
           std::to_string(page_bytes) + " bytes of " + (is_gpu(problem) ? "bf16" : "float32") +
           " and begins at a multiple of " + std::to_string(alignment));
  }
  for (const AtlasBufferRef& ref :
       {problem.q, problem.k, problem.v, problem.out, problem.control, problem.pages}) {
    if (ref.buffer == ATLAS_NO_BUFFER)
      refuse("one of q, k, v, out, control and pages has no buffer");
  }
  const uint64_t workspace_bytes = workspace_bytes_of(problem);
  if (workspace_bytes != 0 && problem.workspace.buffer == ATLAS_NO_BUFFER) {
    refuse("the workspace of " + std::to_string(workspace_bytes) + " bytes has no buffer");
  }
}

AtlasBufferRef later(AtlasBufferRef ref, uint64_t bytes) {
  ref.offset += bytes;
  return ref;
}

AtlasCode needs(const AtlasAttentionProblem* problem, AtlasAttentionNeeds* needs,
                AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || needs == nullptr ||
        needs->struct_size < sizeof(AtlasAttentionNeeds)) {
      refuse("needs was called without room for an answer");
    }
    check_shape(*problem);
    needs->page_tokens = kernels::kGqaPageTokens;
    needs->bytes_per_page = page_bytes_of(*problem);
    needs->workspace_bytes = workspace_bytes_of(*problem);
    const bool gpu = is_gpu(*problem);
    atlas::sdk::copy_text(needs->contract, gpu ? kernels::kGqaGpuContract : "gqa_f32_b256");
    atlas::sdk::copy_text(needs->state_layout,
                          std::string(gpu ? "gqa bf16 k8 v4" : "gqa f32 k64t v16") + " heads " +
                              std::to_string(problem->kv_heads) + " dim " +
                              std::to_string(problem->head_dim));
    return AtlasCode{ATLAS_OK};
  });
}

atlas::sdk::Launch<kernels::GqaWriteParams> write_launch(const AtlasAttentionProblem& problem) {
  atlas::sdk::Launch<kernels::GqaWriteParams> write("gqa_write", kernels::kGqaWriteParamsDigest);
  write.point(&write.params.k, problem.k);
  write.point(&write.params.v, problem.v);
  write.point(&write.params.control, problem.control);
  write.point(&write.params.rows, problem.rows);
  write.point(&write.params.pages, problem.pages);
  write.params.page_stride = problem.page_stride;
  write.params.k_stride = problem.k_stride;
  write.params.v_stride = problem.v_stride;
  write.params.kv_heads = problem.kv_heads;
  write.params.head_dim = problem.head_dim;
  return write;
}

/// gqa_attend or gqa_merge, without what divides the work.
atlas::sdk::Launch<kernels::GqaAttendParams> attend_launch(const char* kernel,
                                                           const AtlasAttentionProblem& problem) {
  atlas::sdk::Launch<kernels::GqaAttendParams> attend(kernel, kernels::kGqaAttendParamsDigest);
  attend.point(&attend.params.q, problem.q);
  attend.point(&attend.params.out, problem.out);
  attend.point(&attend.params.control, problem.control);
  attend.point(&attend.params.rows, problem.rows);
  attend.point(&attend.params.pages, problem.pages);
  attend.params.page_stride = problem.page_stride;
  attend.params.q_stride = problem.q_stride;
  attend.params.out_stride = problem.out_stride;
  attend.params.heads = problem.heads;
  attend.params.kv_heads = problem.kv_heads;
  attend.params.head_dim = problem.head_dim;
  attend.params.scale = problem.scale;
  return attend;
}

AtlasCode plan_cpu(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                   AtlasError* error) {
  const Workspace workspace = workspace_of(problem);
  const AtlasBufferRef nowhere{ATLAS_NO_BUFFER, 0, 0};
  const AtlasBufferRef arrivals = workspace.bytes != 0 ? problem.workspace : nowhere;
  auto write = write_launch(problem);
  write.point(&write.params.arrivals, arrivals);
  write.params.split_rows = workspace.split_rows;
  write.grid((problem.max_rows - 1) / kernels::kGqaWriteRows + 1);
  if (const AtlasCode code = write.emit(sink, error); code != ATLAS_OK) return code;

  auto attend = attend_launch("gqa_attend", problem);
  attend.point(&attend.params.arrivals, arrivals);
  attend.point(&attend.params.partials,
               workspace.bytes != 0 ? later(problem.workspace, workspace.partials) : nowhere);
  attend.params.tasks = tasks_of(problem);
  attend.params.split_rows = workspace.split_rows;
  attend.params.max_blocks = workspace.max_blocks;
  attend.grid(attend.params.tasks);
  attend.shared_bytes(static_cast<uint32_t>(
      kernels::gqa_scratch_bytes(problem.heads, problem.kv_heads, problem.head_dim)));
  return attend.emit(sink, error);
}

AtlasCode plan_gpu(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                   AtlasError* error) {
  const auto [form, split] = gpu_form_of(problem);
  auto write = write_launch(problem);
  write.grid(problem.max_rows);
  write.block(kernels::kAttentionWriteThreads);
  if (const AtlasCode code = write.emit(sink, error); code != ATLAS_OK) return code;

  const auto divided = [&](const char* kernel) {
    auto launch = attend_launch(kernel, problem);
    if (split.split_rows != 0) launch.point(&launch.params.partials, problem.workspace);
    launch.params.tasks = split.tasks;
    launch.params.split_rows = split.split_rows;
    launch.params.max_blocks = split.max_blocks;
    return launch;
  };
  auto attend = divided(form.kernel);
  attend.grid(split.tiles, problem.kv_heads, split.tasks);
  attend.block(form.threads());
  attend.shared_bytes(kernels::attention_shared_bytes(form, problem.head_dim));
  if (const AtlasCode code = attend.emit(sink, error); code != ATLAS_OK) return code;
  if (split.split_rows == 0) return ATLAS_OK;

  auto merge = divided("gqa_merge");
  merge.grid(problem.max_rows, problem.heads);
  merge.block(kernels::kAttentionMergeThreads);
  merge.shared_bytes(kernels::kAttentionMergeSharedBytes);
  return merge.emit(sink, error);
}

AtlasCode plan(const AtlasAttentionProblem* problem, const AtlasRecordSink* sink,
               AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || sink == nullptr || sink->emit == nullptr) {
      refuse("plan was called without a problem or a sink");
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
  constexpr size_t kForms = std::size(kernels::kGqaForms);
  std::array<AtlasDescriptorKernel, 2 + kGpuPlatforms.size() * (2 + kForms)> all{};
  size_t count = 0;
  const auto need = [&](const char* platform, const char* kernel, uint64_t digest) consteval {
    all[count++] = atlas::sdk::required_kernel(platform, kernel, digest);
  };
  need("cpu", "gqa_write", kernels::kGqaWriteParamsDigest);
  need("cpu", "gqa_attend", kernels::kGqaAttendParamsDigest);
  for (const char* platform : kGpuPlatforms) {
    need(platform, "gqa_write", kernels::kGqaWriteParamsDigest);
    for (const kernels::AttentionForm& form : kernels::kGqaForms) {
      need(platform, form.kernel, kernels::kGqaAttendParamsDigest);
    }
    need(platform, "gqa_merge", kernels::kGqaAttendParamsDigest);
  }
  return all;
}

}  // namespace

ATLAS_DESCRIPTOR(atlas::sdk::describe(
    atlas::sdk::Identity{ATLAS_KIND_ATTENTION, "gqa", "0.1.0", "Apache-2.0"},
    std::array<std::string_view, 4>{"cpu", "h200", "gb10", "strix-hip"}, required_kernels()));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(kPlugin, host, error);
}
