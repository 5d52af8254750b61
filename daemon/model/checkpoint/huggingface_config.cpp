// config.json and generation_config.json of Hugging Face checkpoints: the keys that all families
// share, and which family a file belongs to.
#include <algorithm>
#include <cmath>

#include "daemon/model/checkpoint/huggingface_parts.h"
#include "daemon/model/checkpoint/json_object.h"
#include "daemon/model/checkpoint/model_config.h"
#include "daemon/model/checkpoint/quantization_config.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {
namespace {

using nlohmann::json;

// qwen4_exp has no defaults for its experts: those of its class in transformers differ from the
// released model's, so that a file without them is more likely broken than short.
constexpr Family kFamilies[] = {
    {.architecture = "llama", .class_name = "Llama", .max_positions = 2048, .qk_norm = false},
    {.architecture = "qwen3", .class_name = "Qwen3", .head_dim = 128},
    {.architecture = "qwen3_moe",
     .class_name = "Qwen3Moe",
     .kv_heads = 4,
     .experts = true,
     .dense_layers = true,
     .num_experts = 128,
     .experts_per_token = 8,
     .moe_intermediate = 768,
     .normalize_top = false},
    {.architecture = "qwen3_next",
     .class_name = "Qwen3Next",
     .kv_heads = 2,
     .head_dim = 256,
     .partial_rotary = 0.25,
     .centered_norms = true,
     .attention_gate = true,
     .delta = true,
     .experts = true,
     .dense_layers = true,
     .shared_expert = true,
     .num_experts = 512,
     .experts_per_token = 10,
     .moe_intermediate = 512,
     .shared_intermediate = 512},
    {.architecture = "qwen3_5",
     .class_name = "Qwen3_5",
     .composite = true,
     .kv_heads = 4,
     .head_dim = 256,
     .partial_rotary = 0.25,
     .centered_norms = true,
     .attention_gate = true,
     .delta = true},
    {.architecture = "qwen3_5_moe",
     .class_name = "Qwen3_5Moe",
     .composite = true,
     .kv_heads = 2,
     .head_dim = 256,
     .partial_rotary = 0.25,
     .centered_norms = true,
     .attention_gate = true,
     .delta = true,
     .experts = true,
     .shared_expert = true,
     .num_experts = 256,
     .experts_per_token = 8,
     .moe_intermediate = 512,
     .shared_intermediate = 512},
    {.architecture = "qwen4_exp",
     .class_name = "Qwen4Exp",
     .composite = true,
     .kv_heads = 2,
     .head_dim = 256,
     .centered_norms = true,
     .attention_gate = true,
     .delta = true,
     .experts = true,
     .shared_expert = true,
     .streams = true},
};

/// Ends of the class names that Atlas runs as text models.
constexpr std::string_view kHeads[] = {"ForCausalLM", "ForConditionalGeneration"};

struct Choice {
  const Family* family = nullptr;
  const json* text = nullptr;  ///< the object with the text model's keys
};

Status no_program(const ObjectReader& reader, std::string_view name, std::string_view type) {
  return unimplemented(
      "{}: architecture '{}' (model_type '{}') has no model program; Atlas runs {}", reader.path(),
      printable(name), printable(type), supported_architectures());
}

bool runs_as_text(std::string_view name) {
  return std::any_of(std::begin(kHeads), std::end(kHeads),
                     [&](std::string_view head) { return name.ends_with(head); });
}

/// model_type decides; without one "architectures" does. A class that is no language model is
/// refused whatever the type.
Result<const Family*> family_of(ObjectReader& reader) {
  const std::string type = reader.text("model_type", "");
  const auto classes = reader.texts("architectures");
  ATLAS_RETURN_IF_ERROR(reader.status());
  const std::string name = classes && !classes->empty() ? classes->front() : "";
  if (type.empty() && name.empty()) reader.wrong("model_type", "the name of an architecture");
  ATLAS_RETURN_IF_ERROR(reader.status());
  const Family* family = type.empty() ? family_of_class(name) : family_of_type(type);
  if (family == nullptr || (!name.empty() && !runs_as_text(name))) {
    return no_program(reader, name, type);
  }
  if (family->architecture == "llama" && !name.empty() && name != "LlamaForCausalLM") {
    return no_program(reader, name, type);
  }
  return family;
}

/// Models with pictures keep the keys of their text part in "text_config".
Result<Choice> choose(ObjectReader& reader, const json& tree) {
  Choice out;
  ATLAS_ASSIGN_OR_RETURN(out.family, family_of(reader));
  out.text = reader.find("text_config");
  if (out.text == nullptr) {
    out.text = &tree;
    return out;
  }
  if (!out.text->is_object()) reader.wrong("text_config", "an object");
  ATLAS_RETURN_IF_ERROR(reader.status());
  ObjectReader text(*out.text, reader.path() + ": text_config");
  const std::string type = text.text("model_type", "");
  ATLAS_RETURN_IF_ERROR(text.status());
  if (!type.empty() && family_of_type(type) != out.family) {
    return invalid_argument("{}: key 'model_type' is '{}'; expected '{}_text', as outside it",
                            text.path(), printable(type), out.family->architecture);
  }
  return out;
}

Result<AtlasDType> read_dtype(ObjectReader& reader, std::string_view fallback) {
  const std::string name = reader.text("dtype", reader.text("torch_dtype", fallback));
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (name == "bfloat16") return AtlasDType{ATLAS_BF16};
  if (name == "float16") return AtlasDType{ATLAS_F16};
  if (name == "float32" || name == "auto") return AtlasDType{ATLAS_F32};
  return unimplemented("{}: dtype is '{}'; expected bfloat16, float16 or float32", reader.path(),
                       printable(name));
}

Status add_generation_ids(std::string_view text, const std::string& path, ModelConfig* config) {
  if (text.empty()) return {};
  ATLAS_ASSIGN_OR_RETURN(const json tree, parse_json_object(text, path));
  ObjectReader reader(tree, path);
  for (const uint32_t id : reader.ids("eos_token_id")) config->eos_ids.push_back(id);
  const std::vector<uint32_t> bos = reader.ids("bos_token_id");
  if (!bos.empty() && !config->bos_id) config->bos_id = bos.front();
  return reader.status();
}

/// The whole model's entry, or its text part's.
Status read_formats(ObjectReader& top, ObjectReader& text, ModelConfig* config) {
  constexpr const char* kKey = "quantization_config";
  ObjectReader& reader = top.find(kKey) != nullptr ? top : text;
  const json* object = reader.find(kKey);
  if (object == nullptr) return {};
  if (!object->is_object()) reader.wrong(kKey, "an object");
  ATLAS_RETURN_IF_ERROR(reader.status());
  ATLAS_ASSIGN_OR_RETURN(config->declared_formats,
                         read_quantization_config(*object, reader.path()));
  return {};
}

/// Keys that every family has. Ranges are checked later, for both file formats.
void read_common(ObjectReader& reader, const Family& family, ModelConfig* config) {
  constexpr uint32_t kAny = UINT32_MAX;
  config->architecture = family.architecture;
  config->hidden = reader.integer("hidden_size", std::nullopt, kAny);
  config->layers = reader.integer("num_hidden_layers", std::nullopt, kAny);
  config->heads = reader.integer("num_attention_heads", std::nullopt, kAny);
  config->kv_heads = reader.integer("num_key_value_heads",
                                    family.kv_heads != 0 ? family.kv_heads : config->heads, kAny);
  config->head_dim = reader.integer(
      "head_dim",
      family.head_dim != 0 ? family.head_dim : config->hidden / std::max(config->heads, 1u), kAny);
  if (!family.experts || family.dense_layers) {
    config->intermediate = reader.integer("intermediate_size", std::nullopt, kAny);
  }
  config->vocab = reader.integer("vocab_size", std::nullopt, kAny);
  config->max_positions = reader.integer("max_position_embeddings", family.max_positions, kAny);
  config->rms_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-6));
  config->attention_bias = reader.boolean("attention_bias", false);
  config->attention_output_bias = config->attention_bias;
  config->mlp_bias = family.architecture == "llama" && reader.boolean("mlp_bias", false);
  config->attention_gate = family.attention_gate && reader.boolean("attn_output_gate", true);
  config->qk_norm = family.qk_norm;
  config->centered_norms = family.centered_norms;
  config->activation = reader.text("hidden_act", "silu");
  const std::vector<uint32_t> bos = reader.ids("bos_token_id");
  if (!bos.empty()) config->bos_id = bos.front();
  config->eos_ids = reader.ids("eos_token_id");
}

}  // namespace

const Family* family_of_type(std::string_view model_type) {
  constexpr std::string_view kText = "_text";
  const bool text = model_type.ends_with(kText);
  if (text) model_type.remove_suffix(kText.size());
  if (model_type == "qwen3_8_flash_next") model_type = "qwen4_exp";
  for (const Family& family : kFamilies) {
    if (family.architecture == model_type) return !text || family.composite ? &family : nullptr;
  }
  return nullptr;
}

const Family* family_of_class(std::string_view class_name) {
  for (const Family& family : kFamilies) {
    for (const std::string_view head : kHeads) {
      if (class_name.size() == family.class_name.size() + head.size() &&
          class_name.starts_with(family.class_name) && class_name.ends_with(head)) {
        return &family;
      }
    }
  }
  return nullptr;
}

Result<ModelConfig> read_huggingface_config(std::string_view text, const std::string& path,
                                            std::string_view generation_json,
                                            const std::string& generation_path) {
  ATLAS_ASSIGN_OR_RETURN(const json tree, parse_json_object(text, path));
  ObjectReader top(tree, path);
  ATLAS_ASSIGN_OR_RETURN(const Choice choice, choose(top, tree));
  const bool nested = choice.text != &tree;
  ObjectReader reader(*choice.text, nested ? path + ": text_config" : path);
  ModelConfig config;
  read_common(reader, *choice.family, &config);
  // The outer object wins, as in transformers, where the whole model ties its weights.
  config.tie_embeddings =
      top.boolean("tie_word_embeddings", reader.boolean("tie_word_embeddings", false));
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (nested) {
    for (const uint32_t id : top.ids("eos_token_id")) config.eos_ids.push_back(id);
  }
  const std::string outer_dtype = top.text("dtype", top.text("torch_dtype", "float32"));
  ATLAS_RETURN_IF_ERROR(top.status());
  ATLAS_ASSIGN_OR_RETURN(config.dtype, read_dtype(reader, outer_dtype));
  ATLAS_RETURN_IF_ERROR(check_model_config(config, reader.path()));
  ATLAS_ASSIGN_OR_RETURN(const RopeSettings rope,
                         read_huggingface_rope(reader, config.head_dim, config.max_positions,
                                               choice.family->partial_rotary));
  if (choice.family->architecture != "llama") {
    ATLAS_RETURN_IF_ERROR(read_layer_parts(reader, *choice.family, &config));
  }
  if (choice.family->streams) ATLAS_RETURN_IF_ERROR(read_stream_parts(reader, rope, &config));
  ATLAS_RETURN_IF_ERROR(read_formats(top, reader, &config));
  ATLAS_RETURN_IF_ERROR(add_generation_ids(generation_json, generation_path, &config));
  return finish_model_config(std::move(config), rope, reader.path());
}

}  // namespace atlas::model
