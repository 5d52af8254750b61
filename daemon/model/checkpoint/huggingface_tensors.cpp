// One pass over the table builds a new one. Slices of fused experts are ordinary entries: for 512
// experts in each of 48 layers they are 73,728, half as many as the FP8 release stores by itself.
#include "daemon/model/checkpoint/huggingface_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "daemon/model/checkpoint/dtype.h"
#include "daemon/model/checkpoint/float_values.h"
#include "daemon/model/checkpoint/ngram_table.h"

namespace atlas::model {
namespace {

constexpr std::string_view kGateUp = ".mlp.experts.gate_up_proj";
constexpr std::string_view kDown = ".mlp.experts.down_proj";

bool is_vision(std::string_view name) {
  return name.starts_with("model.visual.") || name.starts_with("visual.");
}

/// "model.mtp.x" is "mtp.x".
std::string_view draft_name(std::string_view name) {
  constexpr std::string_view kRepack = "model.mtp.";
  return name.starts_with(kRepack) ? name.substr(std::string_view("model.").size()) : name;
}

Status check_fused(const TensorInfo& tensor, uint64_t rows, uint64_t columns, const MoeConfig& moe,
                   const std::string& file) {
  if (tensor.dtype != ATLAS_BF16 && tensor.dtype != ATLAS_F16 && tensor.dtype != ATLAS_F32) {
    return unimplemented(
        "{}: the fused experts '{}' are {}; Atlas reads fused ones in bf16, f16 and f32, "
        "quantized ones expert by expert",
        file, printable(tensor.name), dtype_name(tensor.dtype));
  }
  if (tensor.rank == 3 && tensor.dims[0] == moe.experts && tensor.dims[1] == rows &&
      tensor.dims[2] == columns) {
    return {};
  }
  return invalid_argument(
      "{}: the fused experts '{}' are [{}]; expected [{}, {}, {}] by the config", file,
      printable(tensor.name), fmt::join(tensor.shape(), ", "), moe.experts, rows, columns);
}

/// Adds rows [first, first + rows) of expert `expert` as a tensor of its own.
void add_slice(const TensorInfo& fused, std::string_view module, uint64_t expert,
               std::string_view projection, uint64_t first, uint64_t rows, TensorTable* table) {
  const uint64_t row_bytes = fused.bytes / (fused.dims[0] * fused.dims[1]);
  TensorInfo slice;
  slice.name = table->intern(fmt::format("{}.{}.{}.weight", module, expert, projection));
  slice.dtype = fused.dtype;
  slice.rank = 2;
  slice.dims = {rows, fused.dims[2]};
  slice.file = fused.file;
  slice.offset = fused.offset + (expert * fused.dims[1] + first) * row_bytes;
  slice.bytes = rows * row_bytes;
  table->add(slice);
}

/// Whether `tensor` was fused and its slices were added.
Result<bool> split_experts(const TensorInfo& tensor, const ModelConfig& config,
                           const std::string& file, TensorTable* table) {
  const bool gate_up = tensor.name.ends_with(kGateUp);
  if (!config.moe || (!gate_up && !tensor.name.ends_with(kDown))) return false;
  const uint64_t half = config.moe->intermediate;
  const std::string_view module = tensor.name.substr(0, tensor.name.rfind('.'));
  if (gate_up) {
    ATLAS_RETURN_IF_ERROR(check_fused(tensor, 2 * half, config.hidden, *config.moe, file));
  } else {
    ATLAS_RETURN_IF_ERROR(check_fused(tensor, config.hidden, half, *config.moe, file));
  }
  for (uint64_t expert = 0; expert < config.moe->experts; ++expert) {
    if (gate_up) {
      add_slice(tensor, module, expert, "gate_proj", 0, half, table);
      add_slice(tensor, module, expert, "up_proj", half, half, table);
    } else {
      add_slice(tensor, module, expert, "down_proj", 0, config.hidden, table);
    }
  }
  return true;
}

/// The mean gain of the zero-centred norms whose names end with `suffix` in the first layers, or
/// nothing if there is none. It reads a few kilobytes of each.
Result<std::optional<double>> mean_gain(const CheckpointState& state, std::string_view suffix) {
  constexpr uint32_t kLayers = 8;
  constexpr uint64_t kMostBytes = 16u << 20;  // no norm: the loader will say so
  double sum = 0;
  uint64_t count = 0;
  for (uint32_t layer = 0; layer < std::min(kLayers, state.config.layers); ++layer) {
    const TensorInfo* tensor =
        state.table.find(fmt::format("{}.layers.{}.{}", state.config.prefix, layer, suffix));
    if (tensor == nullptr || tensor->bytes > kMostBytes) continue;
    std::vector<std::byte> bytes(tensor->bytes);
    ATLAS_RETURN_IF_ERROR(state.files[tensor->file].read_at(tensor->offset, bytes));
    for (const float value : float_values(tensor->dtype, bytes)) sum += value, ++count;
  }
  if (count == 0) return std::optional<double>();
  return std::optional(sum / static_cast<double>(count));
}

/// Norms of these families multiply by 1 + weight. Some repacks store 1 + weight itself, and then
/// every norm would be about twice too large, without any other sign. Gains of the released
/// qwen4_exp are 0.22 on average, those of folded repacks 1.15: halfway is no model's gain. Of the
/// older families the averages are not known, so they only get a note.
Status check_gains(CheckpointState* state) {
  constexpr double kFolded = 0.7;
  if (!state->config.centered_norms) return {};
  const bool streams = state->config.streams.has_value();
  ATLAS_ASSIGN_OR_RETURN(const std::optional<double> mean,
                         mean_gain(*state, streams ? "attn_hyper_connection.hc_norm.weight"
                                                   : "input_layernorm.weight"));
  if (!mean || *mean < kFolded) return {};
  const std::string found = fmt::format(
      "the norms of the first layers have gains of {:.3f} on average, but {} multiplies by 1 + "
      "gain, so that they should be near 0",
      *mean, state->config.architecture);
  if (!streams) {
    state->notes.push_back(found + ": if a tool added the 1 already, answers will be wrong");
    return {};
  }
  return invalid_argument(
      "{}: {}: a tool added the 1 already; use the original checkpoint, or subtract 1 from its "
      "norms (all but linear_attn.norm)",
      state->files.front().path(), found);
}

void settle_config(CheckpointState* state) {
  ModelConfig& config = state->config;
  const TensorTable& table = state->table;
  config.prefix =
      table.with_prefix("model.language_model").empty() ? "model" : "model.language_model";
  const size_t draft_tensors = table.with_prefix("mtp").size();
  if (draft_tensors != 0 && !config.draft_head) {
    state->notes.push_back(fmt::format("{} tensors of mtp are not used: {}", draft_tensors,
                                       config.streams
                                           ? "the configuration has no draft layer"
                                           : "Atlas runs the draft head of qwen4_exp only"));
  }
  if (table.with_prefix("mtp.layers.1").size() != 0 && config.draft_head) {
    state->notes.emplace_back("the draft head has several layers; only the first one drafts");
  }
  config.draft_head = config.draft_head && draft_tensors != 0;
  if (config.ngram) {
    const std::string module = ngram_module(config);
    uint32_t shards = 0;
    const auto has = [&](const char* part) {
      return table.find(module + part + ".weight") != nullptr ||
             table.find(module + part + ".trellis") != nullptr;
    };
    while (has(fmt::format(".shard_{}", shards).c_str())) ++shards;
    if (shards != 0 || has("")) config.ngram->shards = shards;
  }
}

}  // namespace

Status settle_tensors(CheckpointState* state) {
  TensorTable table;
  table.reserve(state->table.tensors().size());
  const std::vector<std::string> paths = state->paths();
  uint64_t vision = 0, vision_bytes = 0;
  for (TensorInfo tensor : state->table.tensors()) {
    if (is_vision(tensor.name)) {
      ++vision;
      vision_bytes += tensor.bytes;
      continue;
    }
    tensor.name = draft_name(tensor.name);
    ATLAS_ASSIGN_OR_RETURN(const bool split,
                           split_experts(tensor, state->config, paths[tensor.file], &table));
    if (split) continue;
    tensor.name = table.intern(tensor.name);
    table.add(tensor);
  }
  ATLAS_RETURN_IF_ERROR(table.seal(paths));
  state->table = std::move(table);
  if (vision != 0) {
    state->notes.push_back(
        fmt::format("{} tensors of the vision tower ({} bytes) are not used: Atlas reads text",
                    vision, vision_bytes));
  }
  settle_config(state);
  return check_gains(state);
}

}  // namespace atlas::model
