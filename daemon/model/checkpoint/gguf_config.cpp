// The model configuration in GGUF metadata, architecture llama.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "daemon/model/checkpoint/gguf.h"
#include "daemon/model/checkpoint/model_config.h"

namespace atlas::model {
namespace {

// Control tokens that end a turn by their text: many files name only one of them by key, and
// llama.cpp stops at these as well.
constexpr std::string_view kEndTokens[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>",
                                           "<|eot_id|>", "<|eom_id|>"};
constexpr int64_t kControlToken = 3;

/// Reads typed values; the first problem is kept, later reads return defaults.
class MetadataReader {
 public:
  explicit MetadataReader(const GgufFile& file) : file_(file) {}
  const Status& status() const { return status_; }

  uint32_t integer(std::string_view key, std::optional<uint32_t> fallback) {
    const auto value = take(file_.integer(key));
    if (value && *value > UINT32_MAX) {
      keep(invalid_argument("{}: key '{}' is {}; expected less", file_.path(), key, *value));
    }
    return value ? static_cast<uint32_t>(*value) : missing(key, fallback);
  }
  double number(std::string_view key, std::optional<double> fallback) {
    const auto value = take(file_.number(key));
    return value ? *value : missing(key, fallback);
  }
  std::string text(std::string_view key, std::string_view fallback) {
    return std::string(take(file_.text(key)).value_or(fallback));
  }
  bool boolean(std::string_view key, bool fallback) {
    return take(file_.boolean(key)).value_or(fallback);
  }

 private:
  template <typename T>
  std::optional<T> take(Result<std::optional<T>> result) {
    if (result) return *result;
    keep(result.error());
    return std::nullopt;
  }
  template <typename T>
  T missing(std::string_view key, std::optional<T> fallback) {
    if (!fallback) keep(invalid_argument("{}: key '{}' is missing", file_.path(), key));
    return fallback.value_or(T{});
  }
  void keep(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const GgufFile& file_;
  Status status_;
};

/// What a file says that a plain llama program would silently get wrong.
Status refuse_variants(const GgufFile& file, MetadataReader& reader, uint32_t head_dim,
                       uint32_t max_positions) {
  const uint32_t experts = reader.integer("llama.expert_count", 0);
  const uint32_t value_dim = reader.integer("llama.attention.value_length", head_dim);
  const uint32_t window = reader.integer("llama.attention.sliding_window", 0);
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (experts != 0) {
    return unimplemented("{}: a llama with {} experts; Atlas runs dense ones", file.path(),
                         experts);
  }
  if (value_dim != head_dim) {
    return unimplemented("{}: values of {} elements beside keys of {}; expected the same",
                         file.path(), value_dim, head_dim);
  }
  if (window != 0 && window < max_positions) {
    return unimplemented("{}: a sliding window of {} positions; Atlas runs llama without one",
                         file.path(), window);
  }
  return {};
}

Result<RopeSettings> read_rope(const GgufFile& file, MetadataReader& reader, uint32_t head_dim,
                               uint32_t max_positions) {
  RopeSettings out;
  out.theta = reader.number("llama.rope.freq_base", 10000.0);
  out.rotary_dim = reader.integer("llama.rope.dimension_count", head_dim);
  // "scale_linear" is the older spelling of a linear factor.
  const double older = reader.number("llama.rope.scale_linear", 1.0);
  const std::string type = reader.text("llama.rope.scaling.type", older != 1.0 ? "linear" : "none");
  out.factor = reader.number("llama.rope.scaling.factor", older);
  out.original_positions =
      reader.number("llama.rope.scaling.original_context_length", double(max_positions));
  const double attention = reader.number("llama.rope.scaling.attn_factor", 1.0);
  out.beta_fast = reader.number("llama.rope.scaling.yarn_beta_fast", 32.0);
  out.beta_slow = reader.number("llama.rope.scaling.yarn_beta_slow", 1.0);
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (type == "linear") {
    out.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    out.scaling = RopeScaling::kYarn;
    // llama.cpp multiplies the usual 1 + 0.1 ln(factor) by attn_factor.
    if (attention != 1.0) out.attention_factor = attention * rope_attention_scale(out);
  } else if (type != "none") {
    return unimplemented(
        "{}: llama.rope.scaling.type is '{}'; Atlas computes none, linear and yarn", file.path(),
        printable(type));
  } else {
    out.factor = 1;
  }
  ATLAS_RETURN_IF_ERROR(check_rope_settings(out).with_context(file.path()));
  return out;
}

/// Divides by the factors of rope_freqs.weight, where converters put llama3 scaling.
Status apply_factors(const GgufFile& file, const TensorTable& table,
                     std::span<const std::byte> factors, RopeConfig* rope) {
  const TensorInfo* tensor = table.find("rope_freqs.weight");
  if (tensor == nullptr) return {};
  const size_t count = rope->inverse_frequencies.size();
  if (tensor->dtype != ATLAS_F32 || factors.size() != count * sizeof(float)) {
    return invalid_argument("{}: rope_freqs.weight must be {} values of f32", file.path(), count);
  }
  for (size_t i = 0; i < count; ++i) {
    float factor = 0;
    std::memcpy(&factor, factors.data() + i * sizeof(float), sizeof(float));
    if (!(factor > 0 && factor < 1e9f)) {
      return invalid_argument("{}: rope_freqs.weight has the factor {} at {}; expected more than 0",
                              file.path(), factor, i);
    }
    rope->inverse_frequencies[i] /= factor;
  }
  return {};
}

Result<std::vector<uint32_t>> end_tokens(const GgufFile& file) {
  std::vector<uint32_t> out;
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    ATLAS_ASSIGN_OR_RETURN(const auto id, file.integer(key));
    if (id) out.push_back(static_cast<uint32_t>(std::min<uint64_t>(*id, UINT32_MAX)));
  }
  ATLAS_ASSIGN_OR_RETURN(const auto types, file.integers("tokenizer.ggml.token_type"));
  ATLAS_ASSIGN_OR_RETURN(const auto tokens, file.texts("tokenizer.ggml.tokens"));
  if (!types || !tokens) return out;
  for (size_t i = 0; i < std::min(types->size(), tokens->size()); ++i) {
    if ((*types)[i] != kControlToken) continue;
    if (std::find(std::begin(kEndTokens), std::end(kEndTokens), (*tokens)[i]) !=
        std::end(kEndTokens)) {
      out.push_back(static_cast<uint32_t>(i));
    }
  }
  return out;
}

}  // namespace

Result<ModelConfig> read_gguf_config(const GgufFile& file, const TensorTable& table,
                                     std::span<const std::byte> rope_factors) {
  MetadataReader reader(file);
  ModelConfig config;
  config.architecture = reader.text("general.architecture", "");
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (config.architecture != "llama") {
    return unimplemented("{}: architecture '{}' is not run; Atlas runs GGUF files of llama",
                         file.path(), printable(config.architecture));
  }
  const TensorInfo* embedding = table.find("model.embed_tokens.weight");
  if (embedding == nullptr || embedding->rank != 2) {
    return invalid_argument("{}: there is no matrix token_embd.weight", file.path());
  }
  const uint64_t rows = std::min<uint64_t>(embedding->dims[0], UINT32_MAX);
  config.hidden = reader.integer("llama.embedding_length", std::nullopt);
  config.layers = reader.integer("llama.block_count", std::nullopt);
  config.heads = reader.integer("llama.attention.head_count", std::nullopt);
  config.kv_heads = reader.integer("llama.attention.head_count_kv", config.heads);
  config.head_dim =
      reader.integer("llama.attention.key_length", config.hidden / std::max(config.heads, 1u));
  config.intermediate = reader.integer("llama.feed_forward_length", std::nullopt);
  config.vocab = reader.integer("llama.vocab_size", static_cast<uint32_t>(rows));
  config.max_positions = reader.integer("llama.context_length", std::nullopt);
  config.rms_eps =
      static_cast<float>(reader.number("llama.attention.layer_norm_rms_epsilon", std::nullopt));
  config.activation = "silu";
  config.tie_embeddings = table.find("lm_head.weight") == nullptr;
  config.attention_bias = table.find("model.layers.0.self_attn.q_proj.bias") != nullptr;
  config.attention_output_bias = table.find("model.layers.0.self_attn.o_proj.bias") != nullptr;
  config.mlp_bias = table.find("model.layers.0.mlp.down_proj.bias") != nullptr;
  config.dtype = embedding->dtype;
  config.rope.interleaved = true;
  ATLAS_RETURN_IF_ERROR(reader.status());
  ATLAS_RETURN_IF_ERROR(check_model_config(config, file.path()));
  ATLAS_RETURN_IF_ERROR(refuse_variants(file, reader, config.head_dim, config.max_positions));
  if (file.has("tokenizer.ggml.bos_token_id")) {
    config.bos_id = reader.integer("tokenizer.ggml.bos_token_id", 0);
  }
  ATLAS_RETURN_IF_ERROR(reader.status());
  ATLAS_ASSIGN_OR_RETURN(config.eos_ids, end_tokens(file));
  ATLAS_ASSIGN_OR_RETURN(const RopeSettings rope,
                         read_rope(file, reader, config.head_dim, config.max_positions));
  ATLAS_ASSIGN_OR_RETURN(config, finish_model_config(std::move(config), rope, file.path()));
  ATLAS_RETURN_IF_ERROR(apply_factors(file, table, rope_factors, &config.rope));
  return config;
}

}  // namespace atlas::model
