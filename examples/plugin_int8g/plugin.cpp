// The plugin int8g: says which weights are its own, packs them, and plans products with them.
#include <cstring>
#include <string>

#include "format.h"
#include "params.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

namespace int8g {
namespace {

using atlas::sdk::copy_text;
using atlas::sdk::Failure;
using atlas::sdk::guarded;
using atlas::sdk::Launch;

const AtlasTensor* find(const AtlasWeightQuery& query, const std::string& suffix) {
  const std::string name = std::string(query.module) + "." + suffix;
  for (uint32_t i = 0; i < query.tensor_count; ++i) {
    if (name == query.tensors[i].name) return &query.tensors[i];
  }
  return nullptr;
}

// The two tensors of a module, checked against each other. `codes` is null if the module is not
// ours.
struct Module {
  const AtlasTensor* codes = nullptr;
  const AtlasTensor* scales = nullptr;
  uint64_t n = 0;
  Layout layout{0, 1};
};

Module read_module(const AtlasWeightQuery& query) {
  Module module{find(query, "codes"), find(query, "scales")};
  if (module.codes == nullptr && module.scales == nullptr) return module;
  const std::string name = query.module;
  if (module.codes == nullptr || module.scales == nullptr) {
    throw Failure(ATLAS_INVALID_ARGUMENT, name + " has codes or scales, and needs both");
  }
  const AtlasTensor& codes = *module.codes;
  const AtlasTensor& scales = *module.scales;
  if (codes.dtype != ATLAS_I8 || codes.rank != 2 || scales.dtype != ATLAS_F32 || scales.rank != 2) {
    throw Failure(ATLAS_INVALID_ARGUMENT,
                  name + ".codes must be I8 and .scales F32, both of rank 2");
  }
  const uint64_t n = codes.dims[0];
  const uint64_t k = codes.dims[1];
  const uint64_t groups = scales.dims[1];
  if (scales.dims[0] != n || n == 0 || k == 0 || groups == 0 || k % groups != 0 || k > UINT32_MAX) {
    throw Failure(ATLAS_INVALID_ARGUMENT,
                  name + ".codes [n, k] and .scales [n, k / group] do not fit each other");
  }
  module.n = n;
  module.layout = {k, static_cast<uint32_t>(k / groups)};
  return module;
}

AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* claim, AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    const Module module = read_module(*query);
    claim->claimed = module.codes != nullptr ? 1 : 0;
    if (claim->claimed == 0) return ATLAS_OK;
    const uint32_t group = module.layout.group;
    copy_text(claim->format, format_name(group));
    copy_text(claim->contract, "int8g_f32_g" + std::to_string(group));
    copy_text(claim->layout, "int8g_r16_g" + std::to_string(group));
    claim->n = module.n;
    claim->k = module.layout.k;
    claim->row_group = kRows;
    claim->alignment = 64;
    claim->group_bytes = module.layout.row_group_bytes();
    claim->bits_per_weight = 8.0 + 32.0 / group;
    return ATLAS_OK;
  });
}

AtlasCode pack(const AtlasWeightQuery* query, const AtlasWeightClaim*, uint64_t group_begin,
               uint64_t group_end, void* out, AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    const Module module = read_module(*query);
    if (module.codes == nullptr || module.codes->data == nullptr ||
        module.scales->data == nullptr) {
      throw Failure(ATLAS_INVALID_ARGUMENT, std::string(query->module) + " comes without its data");
    }
    auto* to = static_cast<std::byte*>(out);
    for (uint64_t g = group_begin; g < group_end; ++g, to += module.layout.row_group_bytes()) {
      pack_rows(module.layout, module.n, g * kRows, static_cast<const int8_t*>(module.codes->data),
                static_cast<const float*>(module.scales->data), to);
    }
    return ATLAS_OK;
  });
}

AtlasCode linear_needs(const AtlasLinearProblem*, AtlasLinearNeeds* needs, AtlasError*) {
  needs->fused_epilogues = 1u << ATLAS_EPILOGUE_ADD;
  needs->workspace_bytes = 0;
  copy_text(needs->input_encoding, "");
  needs->encoded_row_bytes = 0;
  return ATLAS_OK;
}

uint32_t checked_group(const char* format) {
  const uint32_t group = group_of(format);
  if (group == 0) throw Failure(ATLAS_INVALID_ARGUMENT, std::string(format) + " is not int8g");
  return group;
}

AtlasCode plan_linear(const AtlasLinearProblem* problem, const AtlasRecordSink* sink,
                      AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    Launch<Int8gLinearParams> launch("int8g_linear", kInt8gLinearParamsDigest);
    launch.point(&launch.params.x, problem->x);
    launch.point(&launch.params.weight, problem->weight);
    launch.point(&launch.params.y, problem->y);
    launch.point(&launch.params.row_count, problem->row_count);
    launch.params.x_stride = problem->x_stride;
    launch.params.y_stride = problem->y_stride;
    launch.params.n = static_cast<uint32_t>(problem->n);
    launch.params.k = static_cast<uint32_t>(problem->k);
    launch.params.group = checked_group(problem->format);
    launch.params.epilogue = problem->epilogue;
    const auto row_groups = static_cast<uint32_t>((problem->n + kRows - 1) / kRows);
    launch.grid(row_groups);
    launch.bytes_read(row_groups * Layout{problem->k, launch.params.group}.row_group_bytes());
    return launch.emit(sink, error);
  });
}

AtlasCode plan_encode(const AtlasEncodeProblem*, const AtlasRecordSink*, AtlasError* error) {
  return atlas::sdk::fail(error, ATLAS_UNIMPLEMENTED, "int8g takes float32 rows as they are");
}

AtlasCode plan_gather(const AtlasGatherProblem* problem, const AtlasRecordSink* sink,
                      AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    Launch<Int8gGatherParams> launch("int8g_gather", kInt8gGatherParamsDigest);
    launch.point(&launch.params.weight, problem->weight);
    launch.point(&launch.params.ids, problem->ids);
    launch.point(&launch.params.y, problem->y);
    launch.point(&launch.params.row_count, problem->row_count);
    launch.params.y_stride = problem->y_stride;
    launch.params.id_stride = problem->id_stride;
    launch.params.n = static_cast<uint32_t>(problem->n);
    launch.params.k = static_cast<uint32_t>(problem->k);
    launch.params.group = checked_group(problem->format);
    launch.grid(problem->max_rows);
    return launch.emit(sink, error);
  });
}

AtlasCode plan_grouped(const AtlasGroupedProblem* problem, const AtlasRecordSink* sink,
                       AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    Launch<Int8gGroupedParams> launch("int8g_grouped", kInt8gGroupedParamsDigest);
    launch.point(&launch.params.x, problem->x);
    launch.point(&launch.params.weight, problem->weight);
    launch.point(&launch.params.y, problem->y);
    launch.point(&launch.params.offsets, problem->offsets);
    launch.point(&launch.params.source, problem->source);
    launch.params.x_stride = problem->x_stride;
    launch.params.y_stride = problem->y_stride;
    launch.params.expert_bytes = problem->expert_bytes;
    launch.params.n = static_cast<uint32_t>(problem->n);
    launch.params.k = static_cast<uint32_t>(problem->k);
    launch.params.group = checked_group(problem->format);
    launch.params.experts = problem->experts;
    launch.grid(static_cast<uint32_t>((problem->n + kRows - 1) / kRows));
    return launch.emit(sink, error);
  });
}

AtlasCode grouped_needs(const AtlasGroupedProblem*, AtlasLinearNeeds* needs, AtlasError*) {
  needs->workspace_bytes = 0;
  copy_text(needs->input_encoding, "");
  needs->encoded_row_bytes = 0;
  return ATLAS_OK;
}

constexpr AtlasQuantApi kQuant = {
    sizeof(AtlasQuantApi), 0,           claim,       pack,         linear_needs,
    plan_linear,           plan_encode, plan_gather, plan_grouped, grouped_needs};
constexpr AtlasPlugin kPlugin = {sizeof(AtlasPlugin),
                                 ATLAS_ABI_MAJOR,
                                 ATLAS_ABI_MINOR,
                                 ATLAS_KIND_QUANT,
                                 &kQuant,
                                 nullptr,
                                 nullptr,
                                 nullptr};

}  // namespace
}  // namespace int8g

ATLAS_DESCRIPTOR(atlas::sdk::describe(
    {ATLAS_KIND_QUANT, "int8g", "1.0.0", "Apache-2.0"}, std::array<std::string_view, 1>{"cpu"},
    std::array{
        atlas::sdk::required_kernel("cpu", "int8g_linear", int8g::kInt8gLinearParamsDigest),
        atlas::sdk::required_kernel("cpu", "int8g_grouped", int8g::kInt8gGroupedParamsDigest),
        atlas::sdk::required_kernel("cpu", "int8g_gather", int8g::kInt8gGatherParamsDigest)}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost*, AtlasError*) {
  return &int8g::kPlugin;
}
