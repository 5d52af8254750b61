// config.json and generation_config.json of Hugging Face checkpoints. Defaults for absent keys are
// those of transformers' LlamaConfig.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "daemon/model/checkpoint/json_events.h"
#include "daemon/model/checkpoint/model_config.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {
namespace {

using nlohmann::json;

/// Reads typed values out of one object. The first problem is kept, later reads return defaults.
class ObjectReader {
 public:
  ObjectReader(const json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const Status& status() const { return status_; }
  const std::string& path() const { return path_; }

  /// The value of `key`, or null if it is absent or JSON's null.
  const json* find(std::string_view key) const {
    const auto place = object_.find(key);
    return place != object_.end() && !place->is_null() ? &*place : nullptr;
  }
  void wrong(std::string_view key, std::string_view expected) {
    const json* found = find(key);
    if (!status_.ok()) return;
    status_ = found == nullptr
                  ? invalid_argument("{}: key '{}' is missing; expected {}", path_, key, expected)
                  : invalid_argument("{}: key '{}' is {}; expected {}", path_, key,
                                     printable(found->dump(-1, ' ', true, kReplace)), expected);
  }
  uint32_t integer(std::string_view key, std::optional<uint32_t> fallback, uint32_t max) {
    const json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number_unsigned() || value->get<uint64_t>() > max) {
      wrong(key, fmt::format("a whole number up to {}", max));
      return 0;
    }
    return static_cast<uint32_t>(value->get<uint64_t>());
  }
  double number(std::string_view key, std::optional<double> fallback) {
    const json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number()) {
      wrong(key, "a number");
      return 0;
    }
    return value->get<double>();
  }
  bool boolean(std::string_view key, bool fallback) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      wrong(key, "true or false");
      return fallback;
    }
    return value->get<bool>();
  }
  std::string text(std::string_view key, std::string_view fallback) {
    const json* value = find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) {
      wrong(key, "a string");
      return std::string(fallback);
    }
    return value->get<std::string>();
  }
  /// An id or a list of ids.
  std::vector<uint32_t> ids(std::string_view key) {
    const json* value = find(key);
    std::vector<uint32_t> out;
    if (value == nullptr) return out;
    const json list = value->is_array() ? *value : json::array({*value});
    for (const json& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
        wrong(key, "a token id or a list of them");
        return {};
      }
      out.push_back(static_cast<uint32_t>(id.get<uint64_t>()));
    }
    return out;
  }

 private:
  static constexpr auto kReplace = json::error_handler_t::replace;
  const json& object_;
  std::string path_;
  Status status_;
};

Result<json> parse_object(std::string_view text, const std::string& path) {
  auto tree = parse_json_tree(text);
  if (!tree) return tree.error().with_context(path);
  if (!tree->is_object()) return invalid_argument("{}: expected a JSON object", path);
  return tree;
}

/// "LlamaForCausalLM" or model_type "llama" is the architecture "llama".
Result<std::string> architecture_of(ObjectReader& reader) {
  std::string type = reader.text("model_type", "");
  std::string name;
  if (const json* list = reader.find("architectures")) {
    if (!list->is_array() || (!list->empty() && !list->front().is_string())) {
      reader.wrong("architectures", "a list of names");
    } else if (!list->empty()) {
      name = list->front().get<std::string>();
    }
  }
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (type.empty() && name.empty()) reader.wrong("model_type", "the name of an architecture");
  ATLAS_RETURN_IF_ERROR(reader.status());
  const bool llama = type.empty() ? name == "LlamaForCausalLM"
                                  : type == "llama" && (name.empty() || name == "LlamaForCausalLM");
  if (llama) return std::string("llama");
  return unimplemented(
      "{}: architecture '{}' (model_type '{}') has no model program; Atlas runs {}", reader.path(),
      printable(name), printable(type), supported_architectures());
}

/// The keys of one rope variant, out of the object that names it.
Status read_scaling(ObjectReader& config, ObjectReader& rope, uint32_t max_positions,
                    RopeSettings* out) {
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "default" || !rope.status().ok()) return rope.status();
  const double original =
      rope.number("original_max_position_embeddings",
                  config.number("original_max_position_embeddings", double(max_positions)));
  if (type == "linear") {
    out->scaling = RopeScaling::kLinear;
    out->factor = rope.number("factor", std::nullopt);
  } else if (type == "llama3") {
    out->scaling = RopeScaling::kLlama3;
    out->factor = rope.number("factor", std::nullopt);
    out->original_positions = original;
    out->low_freq_factor = rope.number("low_freq_factor", std::nullopt);
    out->high_freq_factor = rope.number("high_freq_factor", std::nullopt);
  } else if (type == "yarn") {
    out->scaling = RopeScaling::kYarn;
    out->original_positions = original;
    out->factor = rope.number("factor", max_positions / original);
    out->attention_factor = rope.number("attention_factor", 0.0);
    out->mscale = rope.number("mscale", 0.0);
    out->mscale_all_dim = rope.number("mscale_all_dim", 0.0);
    out->beta_fast = rope.number("beta_fast", 32.0);
    out->beta_slow = rope.number("beta_slow", 1.0);
    out->truncate = rope.boolean("truncate", true);
  } else {
    return unimplemented("{}: rope_type is '{}'; Atlas computes default, linear, llama3 and yarn",
                         rope.path(), printable(type));
  }
  return rope.status();
}

/// rope_parameters (transformers 5) or rope_scaling (before), with rope_theta inside or beside it.
Result<RopeSettings> read_rope(ObjectReader& config, uint32_t head_dim, uint32_t max_positions) {
  const std::string_view key =
      config.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json* found = config.find(key);
  const json empty = json::object();
  if (found != nullptr && !found->is_object()) config.wrong(key, "an object");
  ATLAS_RETURN_IF_ERROR(config.status());
  ObjectReader rope(found != nullptr ? *found : empty, fmt::format("{}: {}", config.path(), key));

  RopeSettings out;
  out.theta = rope.number("rope_theta", config.number("rope_theta", 10000.0));
  const double part =
      rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0));
  ATLAS_RETURN_IF_ERROR(rope.status());
  ATLAS_RETURN_IF_ERROR(read_scaling(config, rope, max_positions, &out));
  ATLAS_RETURN_IF_ERROR(config.status());
  if (!(part > 0 && part <= 1)) {
    return invalid_argument("{}: partial_rotary_factor is {}; expected more than 0, at most 1",
                            config.path(), part);
  }
  out.rotary_dim = static_cast<uint32_t>(head_dim * part);
  const Status status = check_rope_settings(out);
  if (!status.ok()) return status.with_context(found != nullptr ? rope.path() : config.path());
  return out;
}

Result<AtlasDType> read_dtype(ObjectReader& reader) {
  const std::string name = reader.text("dtype", reader.text("torch_dtype", "float32"));
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (name == "bfloat16") return AtlasDType{ATLAS_BF16};
  if (name == "float16") return AtlasDType{ATLAS_F16};
  if (name == "float32" || name == "auto") return AtlasDType{ATLAS_F32};
  return unimplemented("{}: dtype is '{}'; expected bfloat16, float16 or float32", reader.path(),
                       printable(name));
}

Status add_generation_ids(std::string_view text, const std::string& path, ModelConfig* config) {
  if (text.empty()) return {};
  ATLAS_ASSIGN_OR_RETURN(const json tree, parse_object(text, path));
  ObjectReader reader(tree, path);
  for (const uint32_t id : reader.ids("eos_token_id")) config->eos_ids.push_back(id);
  const std::vector<uint32_t> bos = reader.ids("bos_token_id");
  if (!bos.empty() && !config->bos_id) config->bos_id = bos.front();
  return reader.status();
}

}  // namespace

Result<ModelConfig> read_huggingface_config(std::string_view text, const std::string& path,
                                            std::string_view generation_json,
                                            const std::string& generation_path) {
  ATLAS_ASSIGN_OR_RETURN(const json tree, parse_object(text, path));
  ObjectReader reader(tree, path);
  ModelConfig config;
  ATLAS_ASSIGN_OR_RETURN(config.architecture, architecture_of(reader));
  constexpr uint32_t kAny = UINT32_MAX;  // ranges are checked below, for both file formats
  config.hidden = reader.integer("hidden_size", std::nullopt, kAny);
  config.layers = reader.integer("num_hidden_layers", std::nullopt, kAny);
  config.heads = reader.integer("num_attention_heads", std::nullopt, kAny);
  config.kv_heads = reader.integer("num_key_value_heads", config.heads, kAny);
  config.head_dim = reader.integer("head_dim", config.hidden / std::max(config.heads, 1u), kAny);
  config.intermediate = reader.integer("intermediate_size", std::nullopt, kAny);
  config.vocab = reader.integer("vocab_size", std::nullopt, kAny);
  config.max_positions = reader.integer("max_position_embeddings", 2048, kAny);
  config.rms_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-6));
  config.tie_embeddings = reader.boolean("tie_word_embeddings", false);
  config.attention_bias = reader.boolean("attention_bias", false);
  config.attention_output_bias = config.attention_bias;
  config.mlp_bias = reader.boolean("mlp_bias", false);
  config.activation = reader.text("hidden_act", "silu");
  const std::vector<uint32_t> bos = reader.ids("bos_token_id");
  if (!bos.empty()) config.bos_id = bos.front();
  config.eos_ids = reader.ids("eos_token_id");
  ATLAS_RETURN_IF_ERROR(reader.status());
  ATLAS_ASSIGN_OR_RETURN(config.dtype, read_dtype(reader));
  ATLAS_RETURN_IF_ERROR(check_model_config(config, path));
  ATLAS_ASSIGN_OR_RETURN(const RopeSettings rope,
                         read_rope(reader, config.head_dim, config.max_positions));
  ATLAS_RETURN_IF_ERROR(add_generation_ids(generation_json, generation_path, &config));
  return finish_model_config(std::move(config), rope, path);
}

}  // namespace atlas::model
