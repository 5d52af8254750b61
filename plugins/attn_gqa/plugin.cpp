// Attention plugin `gqa`: causal grouped-query attention over paged keys and values, float32 on the
// CPU and bf16 on GPUs. The arithmetic and the layouts are in kernels/common/gqa.h and
// gpu_attention.h.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "plugins/attn_common/paged_attention.h"
#include "plugins/sdk/descriptor.h"

namespace {

namespace kernels = atlas::kernels;
using namespace atlas::paged;
using atlas::sdk::behind;
using atlas::sdk::kNowhere;

constexpr Checks kChecks("gqa");

/// Bytes of a layer's part of a page.
uint64_t page_bytes_of(const AtlasAttentionProblem& problem) {
  if (is_gpu(problem)) {
    return uint64_t{problem.kv_heads} * kernels::attention_head_bytes(problem.head_dim);
  }
  return problem.kv_heads * kernels::gqa_head_floats(problem.head_dim) * sizeof(float);
}

/// How a CPU's records divide the work; that is the workspace.
Split cpu_split_of(const AtlasAttentionProblem& problem) {
  constexpr uint32_t kPages = kernels::kGqaBlockTokens / kernels::kGqaPageTokens;
  return split_of(problem, problem.max_pages / kPages + (problem.max_pages % kPages != 0 ? 1 : 0));
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
  return is_gpu(problem) ? gpu_form_of(problem).split.partial_bytes : cpu_split_of(problem).bytes;
}

AtlasCode needs(const AtlasAttentionProblem* problem, AtlasAttentionNeeds* needs,
                AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || needs == nullptr ||
        needs->struct_size < sizeof(AtlasAttentionNeeds)) {
      kChecks.refuse("needs was called without room for an answer");
    }
    kChecks.shape(*problem);
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
  set_write(write, problem);
  return write;
}

/// gqa_attend or gqa_merge, without what divides the work.
atlas::sdk::Launch<kernels::GqaAttendParams> attend_launch(const char* kernel,
                                                           const AtlasAttentionProblem& problem) {
  atlas::sdk::Launch<kernels::GqaAttendParams> attend(kernel, kernels::kGqaAttendParamsDigest);
  set_attend(attend, problem);
  return attend;
}

AtlasCode plan_cpu(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                   AtlasError* error) {
  const Split split = cpu_split_of(problem);
  const AtlasBufferRef arrivals = split.rows != 0 ? problem.workspace : kNowhere;
  auto write = write_launch(problem);
  write.point(&write.params.arrivals, arrivals);
  write.params.split_rows = split.rows;
  write.grid((problem.max_rows - 1) / kernels::kGqaWriteRows + 1);
  if (const AtlasCode code = write.emit(sink, error); code != ATLAS_OK) return code;

  auto attend = attend_launch("gqa_attend", problem);
  attend.point(&attend.params.arrivals, arrivals);
  attend.point(&attend.params.partials,
               split.rows != 0 ? behind(problem.workspace, split.partials) : kNowhere);
  attend.params.tasks = tasks_of(problem);
  attend.params.split_rows = split.rows;
  attend.params.max_blocks = split.max_blocks;
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
  return emit_divided([&](const char* kernel) { return attend_launch(kernel, problem); }, problem,
                      form, kernels::attention_shared_bytes(form, problem.head_dim), split,
                      "gqa_merge", sink, error);
}

AtlasCode plan(const AtlasAttentionProblem* problem, const AtlasRecordSink* sink,
               AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || sink == nullptr || sink->emit == nullptr) {
      kChecks.refuse("plan was called without a problem or a sink");
    }
    kChecks.shape(*problem);
    kChecks.plan(*problem, page_bytes_of(*problem));
    kChecks.workspace(*problem, workspace_bytes_of(*problem));
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
