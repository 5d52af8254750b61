// What the readers of config.json share: the family that a model type belongs to, and the parts
// that only some families have. Private to this room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/model/checkpoint/json_object.h"
#include "daemon/model/checkpoint/model_config.h"

namespace atlas::model {

/// What a family of models has, and the values of keys that its config.json may leave out. They
/// are those of the configuration classes in Hugging Face transformers 5.24
/// (src/transformers/models/<name>/configuration_<name>.py) but where a comment says otherwise.
struct Family {
  std::string_view architecture;  ///< as ModelConfig::architecture
  std::string_view class_name;    ///< "Qwen3Moe" of Qwen3MoeForCausalLM
  bool composite = false;  ///< also a text part of a model with pictures: model type <name>_text
  uint32_t kv_heads = 0;   ///< 0: as many as attention heads
  uint32_t head_dim = 0;   ///< 0: hidden size / attention heads
  uint32_t max_positions = 32768;
  double partial_rotary = 1;
  bool qk_norm = true;
  bool centered_norms = false;
  bool attention_gate = false;
  bool delta = false;          ///< layer_types has linear_attention, every fourth layer attends
  bool experts = false;        ///< no layer has a plain MLP, unless `dense_layers`
  bool dense_layers = false;   ///< mlp_only_layers and decoder_sparse_step choose layers
  bool shared_expert = false;  ///< experts have a shared one beside them
  uint32_t num_experts = 0, experts_per_token = 0;  ///< 0: the key must be there
  uint32_t moe_intermediate = 0, shared_intermediate = 0;
  bool normalize_top = true;
  bool streams = false;  ///< gated residual streams, sparse attention, n-gram embeddings, MTP
};

/// The family whose model program runs `model_type` ("qwen4_exp_text", ...), or null.
const Family* family_of_type(std::string_view model_type);
/// The family of an entry of "architectures" ("Qwen3MoeForCausalLM"), or null.
const Family* family_of_class(std::string_view class_name);

/// Reads rope_parameters or rope_scaling, with rope_theta and partial_rotary_factor inside or
/// beside it, and checks mrope sections, which text alone does not need.
Result<RopeSettings> read_huggingface_rope(ObjectReader& config, uint32_t head_dim,
                                           uint32_t max_positions, double partial_rotary);

/// Fills mixers, moe and delta from layer_types and the keys that go with each kind of layer.
Status read_layer_parts(ObjectReader& config, const Family& family, ModelConfig* out);

/// Fills streams, indexer, ngram and draft_head of qwen4_exp. `out` has its mixers and `rope` its
/// rotary_dim by now.
Status read_stream_parts(ObjectReader& config, const RopeSettings& rope, ModelConfig* out);

}  // namespace atlas::model
