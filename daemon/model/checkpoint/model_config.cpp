// Ranges of configuration values: far beyond any model that exists, and small enough that products
// of two of them stay within 64 bits.
#include "daemon/model/checkpoint/model_config.h"

#include <algorithm>
#include <cmath>

#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {
namespace {

constexpr uint32_t kMaxHidden = 1u << 20;
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxHeads = 4096;
constexpr uint32_t kMaxHeadDim = 8192;
constexpr uint32_t kMaxIntermediate = 1u << 24;
constexpr uint32_t kMaxVocab = 1u << 26;
constexpr uint32_t kMaxPositions = 1u << 28;

}  // namespace

std::string_view supported_architectures() {
  return "llama, qwen3, qwen3_moe, qwen3_next, qwen3_5, qwen3_5_moe and qwen4_exp "
         "(qwen3_8_flash_next)";
}

Status check_model_config(const ModelConfig& config, const std::string& path) {
  struct Range {
    std::string_view what;
    uint32_t value, max;
    uint32_t min = 1;
  };
  for (const Range& range : {Range{"hidden size", config.hidden, kMaxHidden},
                             {"number of layers", config.layers, kMaxLayers},
                             {"number of attention heads", config.heads, kMaxHeads},
                             {"number of key-value heads", config.kv_heads, kMaxHeads},
                             {"head size", config.head_dim, kMaxHeadDim},
                             {"intermediate size", config.intermediate, kMaxIntermediate, 0},
                             {"vocabulary size", config.vocab, kMaxVocab},
                             {"number of positions", config.max_positions, kMaxPositions}}) {
    if (range.value < range.min || range.value > range.max) {
      return invalid_argument("{}: the {} is {}; expected {} to {}", path, range.what, range.value,
                              range.min, range.max);
    }
  }
  if (config.heads % config.kv_heads != 0) {
    return invalid_argument(
        "{}: {} attention heads cannot share {} key-value heads; expected a multiple", path,
        config.heads, config.kv_heads);
  }
  if (!(config.rms_eps >= 0 && config.rms_eps < 1)) {
    return invalid_argument("{}: the epsilon of the norms is {}; expected 0 or more, below 1", path,
                            config.rms_eps);
  }
  if (config.activation != "silu") {
    return unimplemented("{}: the activation is '{}'; Atlas runs models with 'silu'", path,
                         printable(config.activation));
  }
  return {};
}

Status check_rope_settings(const RopeSettings& settings) {
  struct Range {
    std::string_view what;
    double value, least, most;
  };
  const bool llama3 = settings.scaling == RopeScaling::kLlama3;
  const bool yarn = settings.scaling == RopeScaling::kYarn;
  const double original = llama3 || yarn ? settings.original_positions : 1;
  for (const Range& range : {Range{"rope_theta", settings.theta, 1.0 + 1e-6, 1e15},
                             {"factor", settings.factor, 1e-3, 1e6},
                             {"original_max_position_embeddings", original, 1, kMaxPositions},
                             {"low_freq_factor", settings.low_freq_factor, 1e-3, 1e6},
                             {"high_freq_factor", settings.high_freq_factor, 1e-3, 1e6},
                             {"beta_fast", settings.beta_fast, 1e-3, 1e6},
                             {"beta_slow", settings.beta_slow, 1e-3, 1e6},
                             {"attention_factor", settings.attention_factor, 0, 1e3},
                             {"mscale", settings.mscale, 0, 1e3},
                             {"mscale_all_dim", settings.mscale_all_dim, 0, 1e3}}) {
    if (!(range.value >= range.least && range.value <= range.most)) {
      return invalid_argument("{} is {}; expected {} to {}", range.what, range.value, range.least,
                              range.most);
    }
  }
  if (llama3 && settings.high_freq_factor <= settings.low_freq_factor) {
    return invalid_argument("high_freq_factor is {}; expected more than low_freq_factor, {}",
                            settings.high_freq_factor, settings.low_freq_factor);
  }
  return {};
}

Result<ModelConfig> finish_model_config(ModelConfig config, const RopeSettings& rope,
                                        const std::string& path) {
  ATLAS_RETURN_IF_ERROR(check_model_config(config, path));
  const bool plain_mlp =
      !config.moe || std::find(config.moe->layers.begin(), config.moe->layers.end(), false) !=
                         config.moe->layers.end();
  if (plain_mlp && config.intermediate == 0) {
    return invalid_argument("{}: the intermediate size is 0; expected 1 to {}", path,
                            kMaxIntermediate);
  }
  if (rope.rotary_dim == 0 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > config.head_dim) {
    return invalid_argument(
        "{}: {} of the {} elements of a head rotate; expected an even number "
        "from 2 to the head size",
        path, rope.rotary_dim, config.head_dim);
  }
  std::sort(config.eos_ids.begin(), config.eos_ids.end());
  config.eos_ids.erase(std::unique(config.eos_ids.begin(), config.eos_ids.end()),
                       config.eos_ids.end());
  if (!config.eos_ids.empty() && config.eos_ids.back() >= config.vocab) {
    return invalid_argument("{}: the end token {} is outside the vocabulary of {}", path,
                            config.eos_ids.back(), config.vocab);
  }
  if (config.bos_id && *config.bos_id >= config.vocab) {
    return invalid_argument("{}: the begin token {} is outside the vocabulary of {}", path,
                            *config.bos_id, config.vocab);
  }
  if (config.mixers.empty()) config.mixers.assign(config.layers, Mixer::kAttention);
  config.rope.theta = rope.theta;
  config.rope.rotary_dim = rope.rotary_dim;
  config.rope.scaling = rope.scaling;
  config.rope.inverse_frequencies = rope_inverse_frequencies(rope);
  config.rope.attention_scale = rope_attention_scale(rope);
  return config;
}

}  // namespace atlas::model
