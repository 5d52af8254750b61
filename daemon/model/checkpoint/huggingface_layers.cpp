// The layers of a hybrid model: which of them attend, which are Gated DeltaNet, which have experts.
#include <algorithm>

#include "daemon/model/checkpoint/huggingface_parts.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {
namespace {

using nlohmann::json;

constexpr uint32_t kMaxHeads = 4096;
constexpr uint32_t kMaxWidth = 1u << 24;
constexpr uint32_t kMaxExperts = 1u << 16;
constexpr uint32_t kMaxTaps = 64;

uint32_t number(ObjectReader& config, std::string_view key, uint32_t fallback, uint32_t max) {
  const auto given = fallback != 0 ? std::optional<uint64_t>(fallback) : std::nullopt;
  return static_cast<uint32_t>(config.integer(key, given, 1, max));
}

/// What a name in layer_types means. qwen4_exp has no dense attention: released checkpoints write
/// full_attention, transformers writes indexed_attention, its first versions wrote
/// qwen_sparse_attention, and all mean the same.
std::optional<Mixer> mixer_of(std::string_view name, const Family& family) {
  if (name == "linear_attention" && family.delta) return Mixer::kDelta;
  if (!family.streams) {
    return name == "full_attention" ? std::optional(Mixer::kAttention) : std::nullopt;
  }
  const bool sparse =
      name == "full_attention" || name == "qwen_sparse_attention" || name == "indexed_attention";
  return sparse ? std::optional(Mixer::kSparseAttention) : std::nullopt;
}

Status read_mixers(ObjectReader& config, const Family& family, ModelConfig* out) {
  const Mixer attention = family.streams ? Mixer::kSparseAttention : Mixer::kAttention;
  const auto names = config.texts("layer_types");
  ATLAS_RETURN_IF_ERROR(config.status());
  if (!names) {
    const uint32_t interval =
        family.delta ? number(config, "full_attention_interval", 4, out->layers) : 1;
    ATLAS_RETURN_IF_ERROR(config.status());
    for (uint32_t i = 0; i < out->layers; ++i) {
      out->mixers.push_back((i + 1) % interval == 0 ? attention : Mixer::kDelta);
    }
    return {};
  }
  if (names->size() != out->layers) {
    return invalid_argument("{}: layer_types has {} entries; expected one for each of {} layers",
                            config.path(), names->size(), out->layers);
  }
  for (size_t i = 0; i < names->size(); ++i) {
    const auto mixer = mixer_of((*names)[i], family);
    if (!mixer) {
      return unimplemented("{}: layer_types[{}] is '{}'; Atlas runs {} with {}", config.path(), i,
                           printable((*names)[i]), family.architecture,
                           family.streams ? "linear_attention, full_attention and their aliases "
                                            "qwen_sparse_attention and indexed_attention"
                           : family.delta ? "linear_attention and full_attention"
                                          : "full_attention");
    }
    out->mixers.push_back(*mixer);
  }
  return {};
}

/// A window as long as the context changes nothing; a shorter one would change every answer.
Status refuse_window(ObjectReader& config, const Family& family, const ModelConfig& out) {
  if (family.delta || !config.boolean("use_sliding_window", false)) return config.status();
  const uint32_t window = config.integer("sliding_window", 4096u, UINT32_MAX);
  const uint32_t first = config.integer("max_window_layers", 0u, UINT32_MAX);
  ATLAS_RETURN_IF_ERROR(config.status());
  if (window >= out.max_positions || first >= out.layers) return {};
  return unimplemented(
      "{}: use_sliding_window is true with a window of {} of {} positions; Atlas attends to all",
      config.path(), window, out.max_positions);
}

Status read_delta(ObjectReader& config, const Family& family, ModelConfig* out) {
  DeltaConfig delta;
  delta.key_heads = number(config, "linear_num_key_heads", 16, kMaxHeads);
  delta.value_heads = number(config, "linear_num_value_heads", 32, kMaxHeads);
  delta.key_dim = number(config, "linear_key_head_dim", 128, kMaxWidth);
  delta.value_dim = number(config, "linear_value_head_dim", 128, kMaxWidth);
  delta.conv_kernel = number(config, "linear_conv_kernel_dim", 4, kMaxTaps);
  // "swish" is another name of silu.
  const std::string gate = config.text("output_gate_type", out->activation);
  ATLAS_RETURN_IF_ERROR(config.status());
  if (gate != "sigmoid" && gate != "silu" && gate != "swish") {
    return unimplemented("{}: output_gate_type is '{}'; Atlas computes sigmoid and silu",
                         config.path(), printable(gate));
  }
  delta.sigmoid_gate = gate == "sigmoid";
  delta.fused_projections = family.architecture == "qwen3_next";
  if (delta.value_heads % delta.key_heads != 0) {
    return invalid_argument(
        "{}: {} value heads (linear_num_value_heads) cannot share {} key heads "
        "(linear_num_key_heads); expected a multiple",
        config.path(), delta.value_heads, delta.key_heads);
  }
  out->delta = delta;
  return {};
}

Status read_moe(ObjectReader& config, const Family& family, ModelConfig* out) {
  MoeConfig moe;
  // transformers writes qwen3_moe's number of experts under its general name.
  const bool general =
      config.find("num_experts") == nullptr && config.find("num_local_experts") != nullptr;
  moe.experts = number(config, general ? "num_local_experts" : "num_experts", family.num_experts,
                       kMaxExperts);
  moe.experts_per_token =
      number(config, "num_experts_per_tok", family.experts_per_token, kMaxExperts);
  moe.intermediate = number(config, "moe_intermediate_size", family.moe_intermediate, kMaxWidth);
  if (family.shared_expert) {
    moe.shared_intermediate =
        number(config, "shared_expert_intermediate_size", family.shared_intermediate, kMaxWidth);
  }
  moe.normalize_top = config.boolean("norm_topk_prob", family.normalize_top);
  moe.layers.assign(out->layers, true);
  if (family.dense_layers) {
    const uint32_t step = number(config, "decoder_sparse_step", 1, UINT32_MAX);
    for (uint32_t i = 0; i < out->layers; ++i) moe.layers[i] = (i + 1) % step == 0;
    for (const uint32_t layer : config.ids("mlp_only_layers")) {
      if (layer < out->layers) moe.layers[layer] = false;
    }
  }
  ATLAS_RETURN_IF_ERROR(config.status());
  if (moe.experts_per_token > moe.experts) {
    return invalid_argument("{}: num_experts_per_tok is {}; expected 1 to the {} experts",
                            config.path(), moe.experts_per_token, moe.experts);
  }
  const bool all = std::find(moe.layers.begin(), moe.layers.end(), false) == moe.layers.end();
  const bool none = std::find(moe.layers.begin(), moe.layers.end(), true) == moe.layers.end();
  if (all) out->intermediate = 0;
  if (!none) out->moe = std::move(moe);
  return {};
}

}  // namespace

Status read_layer_parts(ObjectReader& config, const Family& family, ModelConfig* out) {
  ATLAS_RETURN_IF_ERROR(read_mixers(config, family, out));
  ATLAS_RETURN_IF_ERROR(refuse_window(config, family, *out));
  if (std::find(out->mixers.begin(), out->mixers.end(), Mixer::kDelta) != out->mixers.end()) {
    ATLAS_RETURN_IF_ERROR(read_delta(config, family, out));
  }
  return family.experts ? read_moe(config, family, out) : Status();
}

}  // namespace atlas::model
