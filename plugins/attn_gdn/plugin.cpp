// Attention plugin `gdn`: Gated DeltaNet with float32 state at anchors, every 64 positions. The
// arithmetic and the layouts are in kernels/common/gdn.h.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/common/gdn.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

namespace {

namespace kernels = atlas::kernels;
using atlas::sdk::Failure;

constexpr uint32_t kMaxHeads = 4096;
/// Of a page of the attention layers beside these: there are no pages here.
constexpr uint32_t kPageTokens = 64;

[[noreturn]] void refuse(const std::string& message) {
  throw Failure(ATLAS_INVALID_ARGUMENT, "gdn: " + message);
}

kernels::GdnShape shape_of(const AtlasDelta& delta) {
  return {delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, delta.conv_kernel};
}

uint64_t workspace_bytes(const AtlasAttentionProblem& problem) {
  return problem.max_rows * kernels::gdn_row_floats(shape_of(*problem.delta)) * sizeof(float);
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
  if (problem.platform == nullptr || std::string_view(problem.platform) != "cpu") {
    refuse("platform '" + std::string(problem.platform == nullptr ? "" : problem.platform) +
           "' is not supported: cpu is");
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

void check_state(const char* name, uint64_t stride, uint64_t floats) {
  if (stride < floats * sizeof(float) || stride % alignof(float) != 0) {
    refuse(std::string(name) + "_stride " + std::to_string(stride) + ": a layer's part has " +
           std::to_string(floats * sizeof(float)) + " bytes of float32");
  }
}

void check_plan(const AtlasAttentionProblem& problem) {
  const AtlasDelta& delta = *problem.delta;
  const kernels::GdnShape shape = shape_of(delta);
  check_stride("qkv", delta.qkv_stride, kernels::gdn_channels(shape));
  check_stride("b", delta.b_stride, delta.value_heads);
  check_stride("a", delta.a_stride, delta.value_heads);
  check_stride("out", problem.out_stride, uint64_t{delta.value_heads} * delta.value_dim);
  check_state("slot", problem.slot_stride, kernels::gdn_slot_floats(shape));
  check_state("anchor", problem.anchor_stride, kernels::gdn_anchor_floats(shape));
  for (const AtlasBufferRef& ref :
       {delta.qkv, delta.b, delta.a, delta.conv, delta.a_log, delta.dt_bias, problem.out,
        problem.rows, problem.slots, problem.anchors, problem.workspace}) {
    if (ref.buffer == ATLAS_NO_BUFFER) {
      refuse(
          "one of qkv, b, a, conv, a_log, dt_bias, out, rows, slots, anchors and workspace has no "
          "buffer");
    }
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
    needs->workspace_bytes = workspace_bytes(*problem);
    needs->bytes_per_slot = kernels::gdn_slot_floats(shape) * sizeof(float);
    needs->bytes_per_anchor = kernels::gdn_anchor_floats(shape) * sizeof(float);
    needs->anchor_tokens = kernels::kGdnChunk;
    atlas::sdk::copy_text(needs->contract, "gdn_f32_c64");
    atlas::sdk::copy_text(needs->state_layout, "gdn f32 v16 " + std::to_string(delta.key_heads) +
                                                   "x" + std::to_string(delta.key_dim) + " " +
                                                   std::to_string(delta.value_heads) + "x" +
                                                   std::to_string(delta.value_dim) + " conv " +
                                                   std::to_string(delta.conv_kernel));
    return AtlasCode{ATLAS_OK};
  });
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
  conv.params.qkv_stride = delta.qkv_stride;
  conv.grid(2 * delta.key_heads + delta.value_heads);
  conv.shared_bytes(static_cast<uint32_t>(kernels::gdn_conv_scratch_bytes(shape_of(delta))));
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
  attend.params.sequences = sequences_of(problem);
  attend.grid(sequences_of(problem) * delta.value_heads);
  attend.shared_bytes(static_cast<uint32_t>(kernels::gdn_attend_scratch_bytes(shape_of(delta))));
  // A row reads its sequence's state.
  attend.bytes_read(sequences_of(problem) * kernels::gdn_anchor_history(shape_of(delta)) *
                    sizeof(float));
  return attend.emit(sink, error);
}

AtlasCode plan(const AtlasAttentionProblem* problem, const AtlasRecordSink* sink,
               AtlasError* error) {
  return atlas::sdk::guarded(error, [&] {
    if (problem == nullptr || sink == nullptr || sink->emit == nullptr) {
      refuse("plan was called without a problem or a sink");
    }
    check_shape(*problem);
    check_plan(*problem);
    if (const AtlasCode code = plan_conv(*problem, sink, error); code != ATLAS_OK) return code;
    if (const AtlasCode code = plan_attend(*problem, sink, error); code != ATLAS_OK) return code;
    atlas::sdk::Launch<kernels::GdnKeepParams> keep("gdn_keep", kernels::kGdnKeepParamsDigest);
    set_common(keep, *problem);
    keep.params.sequences = sequences_of(*problem);
    keep.grid(sequences_of(*problem) * problem->delta->key_heads);
    return keep.emit(sink, error);
  });
}

constexpr AtlasAttentionApi kApi = {
    .struct_size = sizeof(AtlasAttentionApi),
    .reserved = 0,
    .needs = needs,
    .plan = plan,
};

constexpr AtlasPlugin kPlugin = atlas::sdk::attention_plugin(&kApi);

}  // namespace

ATLAS_DESCRIPTOR(atlas::sdk::describe(
    atlas::sdk::Identity{ATLAS_KIND_ATTENTION, "gdn", "0.1.0", "Apache-2.0"},
    std::array<std::string_view, 1>{"cpu"},
    std::array{atlas::sdk::required_kernel("cpu", "gdn_conv", kernels::kGdnConvParamsDigest),
               atlas::sdk::required_kernel("cpu", "gdn_attend", kernels::kGdnAttendParamsDigest),
               atlas::sdk::required_kernel("cpu", "gdn_keep", kernels::kGdnKeepParamsDigest)}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(kPlugin, host, error);
}
