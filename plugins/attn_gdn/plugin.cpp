// Attention plugin `gdn`: Gated DeltaNet with float32 state at anchors, every 64 positions. The
// arithmetic and the layouts are in kernels/common/gdn.h.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/common/gdn_grids.h"
#include "kernels/common/platforms.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

namespace {

namespace kernels = atlas::kernels;
using atlas::sdk::Failure;

constexpr uint32_t kMaxHeads = 4096;
/// Blocks of a GPU's grid in its second dimension.
constexpr uint32_t kMaxGrid = 65535;
/// Of a page of the attention layers beside these: there are no pages here.
constexpr uint32_t kPageTokens = 64;

[[noreturn]] void refuse(const std::string& message) {
  throw Failure(ATLAS_INVALID_ARGUMENT, "gdn: " + message);
}

kernels::GdnShape shape_of(const AtlasDelta& delta) {
  return {delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, delta.conv_kernel};
}

/// Whether one kernel does all of a layer: few rows a sequence, on a GPU.
bool steps(const AtlasAttentionProblem& problem) {
  return kernels::is_gpu(problem.platform) && problem.span_rows != 0 &&
         problem.span_rows <= kernels::kGdnStepRows &&
         kernels::gdn_can_step(shape_of(*problem.delta));
}

/// The workspace: the rows' vectors, and on a GPU their dot products and decays, from these bytes
/// on; none where one kernel does it all.
struct Workspace {
  uint64_t dots, decays, bytes;
};
Workspace workspace_of(const AtlasAttentionProblem& problem) {
  const kernels::GdnShape shape = shape_of(*problem.delta);
  const uint64_t rows = problem.max_rows * sizeof(float);
  const uint64_t vectors = rows * kernels::gdn_row_floats(shape);
  if (!kernels::is_gpu(problem.platform)) return {0, 0, vectors};
  if (steps(problem)) return {0, 0, 0};
  const uint64_t decays = vectors + rows * kernels::gdn_row_dots(shape);
  return {vectors, decays, decays + rows * shape.value_heads};
}

/// Where something stands in the workspace; nowhere on a CPU.
AtlasBufferRef in_workspace(const AtlasAttentionProblem& problem, uint64_t offset) {
  if (offset == 0) return {ATLAS_NO_BUFFER, 0, 0};
  AtlasBufferRef place = problem.workspace;
  place.offset += offset;
  return place;
}

/// Spans that a step may have.
uint32_t sequences_of(const AtlasAttentionProblem& problem) {
  return std::min(problem.max_sequences, problem.max_rows);
}

void check_size(const char* name, uint32_t size, uint32_t most) {
  if (size == 0 || size > most) {
    refuse(std::string(name) + " " + std::to_string(size) + ": 1 to " + std::to_string(most) +
           " is supported");
  }
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
  if (problem.backend == nullptr || std::string_view(problem.backend) != "gdn") {
    refuse("backend '" + std::string(problem.backend == nullptr ? "" : problem.backend) +
           "' is not this plugin's: gdn is");
  }
  if (problem.delta == nullptr) refuse("the problem has no delta: use another attention backend");
  const AtlasDelta& delta = *problem.delta;
  if (delta.struct_size < sizeof(AtlasDelta)) {
    refuse("the delta has " + std::to_string(delta.struct_size) + " bytes, and " +
           std::to_string(sizeof(AtlasDelta)) + " are expected");
  }
  if (delta.key_heads == 0 || delta.value_heads == 0 || delta.value_heads > kMaxHeads ||
      delta.value_heads % delta.key_heads != 0) {
    refuse(std::to_string(delta.value_heads) + " value heads over " +
           std::to_string(delta.key_heads) +
           " key heads: the second must divide the first, which is at most " +
           std::to_string(kMaxHeads));
  }
  check_size("key_dim", delta.key_dim, kernels::kGdnMaxDim);
  check_size("value_dim", delta.value_dim, kernels::kGdnMaxDim);
  check_size("conv_kernel", delta.conv_kernel, kernels::kGdnMaxTaps);
  if (problem.max_rows == 0) refuse("a step needs at least one row");
  if (problem.max_sequences == 0) refuse("a step needs at least one sequence");
  // A grid counts in 32 bits.
  if (uint64_t{sequences_of(problem)} * delta.value_heads > std::numeric_limits<int32_t>::max()) {
    refuse(std::to_string(problem.max_sequences) + " sequences of " +
           std::to_string(delta.value_heads) + " heads are too many for one step");
  }
}

void check_stride(const char* name, uint64_t stride, uint64_t least) {
  if (stride < least) {
    refuse(std::string(name) + "_stride " + std::to_string(stride) + " is less than a row of " +
           std::to_string(least));
  }
}

/// GPUs move 16 bytes at a time.
void check_state(const char* name, uint64_t stride, uint64_t floats, bool gpu) {
  const uint64_t unit = gpu ? 16 : alignof(float);
  if (stride < floats * sizeof(float) || stride % unit != 0) {
    refuse(std::string(name) + "_stride " + std::to_string(stride) + ": a layer's part has " +
           std::to_string(floats * sizeof(float)) + " bytes of float32, in units of " +
           std::to_string(unit));
  }
}

void check_plan(const AtlasAttentionProblem& problem) {
  const AtlasDelta& delta = *problem.delta;
  const kernels::GdnShape shape = shape_of(delta);
  check_stride("qkv", delta.qkv_stride, kernels::gdn_channels(shape));
  check_stride("b", delta.b_stride, delta.value_heads);
  check_stride("a", delta.a_stride, delta.value_heads);
  check_stride("out", problem.out_stride, uint64_t{delta.value_heads} * delta.value_dim);
  const bool gpu = kernels::is_gpu(problem.platform);
  check_state("slot", problem.slot_stride, kernels::gdn_slot_floats(shape), gpu);
  check_state("anchor", problem.anchor_stride, kernels::gdn_anchor_floats(shape), gpu);
  for (const AtlasBufferRef& ref :
       {delta.qkv, delta.b, delta.a, delta.conv, delta.a_log, delta.dt_bias, problem.out,
        problem.rows, problem.slots, problem.anchors}) {
    if (ref.buffer == ATLAS_NO_BUFFER) {
      refuse("one of qkv, b, a, conv, a_log, dt_bias, out, rows, slots and anchors has no buffer");
    }
  }
  if (problem.workspace.buffer == ATLAS_NO_BUFFER && workspace_of(problem).bytes != 0) {
    refuse("workspace has no buffer");
  }
  if (delta.norms == 0) return;
  if (!steps(problem)) {
    refuse("norm and gate are asked for where needs does not say that they are done");
  }
  check_stride("gate", delta.gate_stride, uint64_t{delta.value_heads} * delta.value_dim);
  if (delta.norm_weight.buffer == ATLAS_NO_BUFFER || delta.gate.buffer == ATLAS_NO_BUFFER) {
    refuse("one of norm_weight and gate has no buffer");
  }
}

AtlasCode needs(const AtlasAttentionProblem* problem, AtlasAttentionNeeds* needs,
                AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || needs == nullptr ||
        needs->struct_size < sizeof(AtlasAttentionNeeds)) {
      refuse("needs was called without room for an answer");
    }
    check_shape(*problem);
    const AtlasDelta& delta = *problem->delta;
    const kernels::GdnShape shape = shape_of(delta);
    needs->page_tokens = kPageTokens;
    needs->bytes_per_page = 0;
    needs->workspace_bytes = workspace_of(*problem).bytes;
    needs->bytes_per_slot = kernels::gdn_slot_floats(shape) * sizeof(float);
    needs->bytes_per_anchor = kernels::gdn_anchor_floats(shape) * sizeof(float);
    needs->anchor_tokens = kernels::kGdnChunk;
    needs->can_norm = steps(*problem) ? 1 : 0;
    needs->encoded_offset = steps(*problem) ? offsetof(kernels::GdnStepParams, encoded) : 0;
    atlas::sdk::copy_text(needs->contract, "gdn_f32_c64");
    atlas::sdk::copy_text(needs->state_layout, "gdn f32 v16 k8 " + std::to_string(delta.key_heads) +
                                                   "x" + std::to_string(delta.key_dim) + " " +
                                                   std::to_string(delta.value_heads) + "x" +
                                                   std::to_string(delta.value_dim) + " conv " +
                                                   std::to_string(delta.conv_kernel));
    return AtlasCode{ATLAS_OK};
  });
}

/// The grid of a CPU's tasks and their scratch, or what the GPU kernel wants.
template <typename Params>
void set_shape(atlas::sdk::Launch<Params>& launch, const AtlasAttentionProblem& problem,
               uint32_t tasks, uint64_t scratch, const kernels::LaunchShape& shape) {
  if (kernels::is_gpu(problem.platform)) {
    launch.grid(shape.x, shape.y, shape.z);
    launch.block(shape.threads);
    launch.shared_bytes(shape.shared_bytes);
  } else {
    launch.grid(tasks);
    launch.shared_bytes(static_cast<uint32_t>(scratch));
  }
}

/// What all three parameter structs state.
template <typename Params>
void set_common(atlas::sdk::Launch<Params>& launch, const AtlasAttentionProblem& problem) {
  launch.point(&launch.params.mixed, problem.workspace);
  launch.point(&launch.params.rows, problem.rows);
  launch.point(&launch.params.slots, problem.slots);
  launch.params.slot_stride = problem.slot_stride;
  launch.params.key_heads = problem.delta->key_heads;
  launch.params.value_heads = problem.delta->value_heads;
  launch.params.key_dim = problem.delta->key_dim;
  launch.params.value_dim = problem.delta->value_dim;
  launch.params.taps = problem.delta->conv_kernel;
}

AtlasCode plan_conv(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                    AtlasError* error) {
  const AtlasDelta& delta = *problem.delta;
  atlas::sdk::Launch<kernels::GdnConvParams> conv("gdn_conv", kernels::kGdnConvParamsDigest);
  set_common(conv, problem);
  conv.point(&conv.params.qkv, delta.qkv);
  conv.point(&conv.params.conv, delta.conv);
  conv.point(&conv.params.anchors, problem.anchors);
  conv.params.anchor_stride = problem.anchor_stride;
  conv.point(&conv.params.dots, in_workspace(problem, workspace_of(problem).dots));
  conv.params.qkv_stride = delta.qkv_stride;
  const kernels::GdnShape shape = shape_of(delta);
  set_shape(conv, problem, 2 * delta.key_heads + delta.value_heads,
            kernels::gdn_conv_scratch_bytes(shape),
            kernels::gdn_conv_shape(shape, problem.max_rows, sequences_of(problem)));
  return conv.emit(sink, error);
}

AtlasCode plan_attend(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                      AtlasError* error) {
  const AtlasDelta& delta = *problem.delta;
  atlas::sdk::Launch<kernels::GdnAttendParams> attend("gdn_attend",
                                                      kernels::kGdnAttendParamsDigest);
  set_common(attend, problem);
  attend.point(&attend.params.b, delta.b);
  attend.point(&attend.params.a, delta.a);
  attend.point(&attend.params.a_log, delta.a_log);
  attend.point(&attend.params.dt_bias, delta.dt_bias);
  attend.point(&attend.params.out, problem.out);
  attend.point(&attend.params.anchors, problem.anchors);
  attend.params.anchor_stride = problem.anchor_stride;
  attend.params.b_stride = delta.b_stride;
  attend.params.a_stride = delta.a_stride;
  attend.params.out_stride = problem.out_stride;
  attend.point(&attend.params.dots, in_workspace(problem, workspace_of(problem).dots));
  attend.point(&attend.params.decays, in_workspace(problem, workspace_of(problem).decays));
  attend.params.sequences = sequences_of(problem);
  const kernels::GdnShape shape = shape_of(delta);
  set_shape(attend, problem, sequences_of(problem) * delta.value_heads,
            kernels::gdn_attend_scratch_bytes(shape),
            kernels::gdn_attend_shape(shape, sequences_of(problem),
                                      kernels::gdn_columns(problem.platform)));
  // A row reads its sequence's state.
  attend.bytes_read(sequences_of(problem) * kernels::gdn_anchor_history(shape) * sizeof(float));
  return attend.emit(sink, error);
}

AtlasCode plan_keep(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                    AtlasError* error) {
  const AtlasDelta& delta = *problem.delta;
  atlas::sdk::Launch<kernels::GdnKeepParams> keep("gdn_keep", kernels::kGdnKeepParamsDigest);
  set_common(keep, problem);
  if (kernels::is_gpu(problem.platform)) keep.point(&keep.params.qkv, delta.qkv);
  keep.point(&keep.params.decays, in_workspace(problem, workspace_of(problem).decays));
  keep.params.qkv_stride = delta.qkv_stride;
  keep.params.sequences = sequences_of(problem);
  set_shape(keep, problem, sequences_of(problem) * delta.key_heads, 0,
            kernels::gdn_keep_shape(shape_of(delta), sequences_of(problem)));
  return keep.emit(sink, error);
}

AtlasCode plan_step(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                    AtlasError* error) {
  const AtlasDelta& delta = *problem.delta;
  atlas::sdk::Launch<kernels::GdnStepParams> step("gdn_step", kernels::kGdnStepParamsDigest);
  kernels::GdnStepParams& params = step.params;
  step.point(&params.qkv, delta.qkv);
  step.point(&params.conv, delta.conv);
  step.point(&params.b, delta.b);
  step.point(&params.a, delta.a);
  step.point(&params.a_log, delta.a_log);
  step.point(&params.dt_bias, delta.dt_bias);
  step.point(&params.out, problem.out);
  step.point(&params.rows, problem.rows);
  step.point(&params.slots, problem.slots);
  step.point(&params.anchors, problem.anchors);
  if (delta.norms != 0) {
    step.point(&params.norm_weight, delta.norm_weight);
    step.point(&params.gate, delta.gate);
    params.gate_stride = delta.gate_stride;
    params.epsilon = delta.norm_epsilon;
    params.silu = delta.silu;
  }
  params.slot_stride = problem.slot_stride;
  params.anchor_stride = problem.anchor_stride;
  params.qkv_stride = delta.qkv_stride;
  params.b_stride = delta.b_stride;
  params.a_stride = delta.a_stride;
  params.out_stride = problem.out_stride;
  params.key_heads = delta.key_heads;
  params.value_heads = delta.value_heads;
  params.key_dim = delta.key_dim;
  params.value_dim = delta.value_dim;
  params.taps = delta.conv_kernel;
  const kernels::GdnShape shape = shape_of(delta);
  const bool holds_values =
      kernels::find_platform(problem.platform)->runtime == kernels::Runtime::kCuda;
  set_shape(step, problem, 0, 0,
            kernels::gdn_step_shape(shape, sequences_of(problem), holds_values));
  // A sequence's state.
  step.bytes_read(sequences_of(problem) * kernels::gdn_anchor_history(shape) * sizeof(float));
  return step.emit(sink, error);
}

AtlasCode plan(const AtlasAttentionProblem* problem, const AtlasRecordSink* sink,
               AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || sink == nullptr || sink->emit == nullptr) {
      refuse("plan was called without a problem or a sink");
    }
    check_shape(*problem);
    check_plan(*problem);
    if (steps(*problem)) return plan_step(*problem, sink, error);
    if (const AtlasCode code = plan_conv(*problem, sink, error); code != ATLAS_OK) return code;
    if (const AtlasCode code = plan_attend(*problem, sink, error); code != ATLAS_OK) return code;
    return plan_keep(*problem, sink, error);
  });
}

constexpr AtlasAttentionApi kApi = {
    .struct_size = sizeof(AtlasAttentionApi),
    .reserved = 0,
    .needs = needs,
    .plan = plan,
};

constexpr AtlasPlugin kPlugin = atlas::sdk::attention_plugin(&kApi);

/// The same kernels on every platform; GPUs have one for few rows, too.
consteval auto needed_kernels() {
  constexpr size_t kGpus =
      std::count_if(kernels::kPlatforms.begin(), kernels::kPlatforms.end(),
                    [](const auto& platform) { return kernels::is_gpu(platform.name); });
  std::array<AtlasDescriptorKernel, 3 * kernels::kPlatforms.size() + kGpus> all{};
  size_t count = 0;
  for (const kernels::Platform& platform : kernels::kPlatforms) {
    using atlas::sdk::required_kernel;
    all[count++] = required_kernel(platform.name, "gdn_conv", kernels::kGdnConvParamsDigest);
    all[count++] = required_kernel(platform.name, "gdn_attend", kernels::kGdnAttendParamsDigest);
    all[count++] = required_kernel(platform.name, "gdn_keep", kernels::kGdnKeepParamsDigest);
    if (!kernels::is_gpu(platform.name)) continue;
    all[count++] = required_kernel(platform.name, "gdn_step", kernels::kGdnStepParamsDigest);
  }
  return all;
}

}  // namespace

ATLAS_DESCRIPTOR(atlas::sdk::describe(
    atlas::sdk::Identity{ATLAS_KIND_ATTENTION, "gdn", "0.1.0", "Apache-2.0"},
    std::array<std::string_view, 4>{"cpu", "h200", "gb10", "strix-hip"}, needed_kernels()));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(kPlugin, host, error);
}
