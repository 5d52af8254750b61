// What a checkpoint says about its model: typed, with every value in a sane range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/rope.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::model {

class GgufFile;
class TensorTable;

/// Rotary embedding of one model.
struct RopeConfig {
  double theta = 10000;
  uint32_t rotary_dim = 0;  ///< the first elements of a head that rotate
  /// False: element i turns with i + rotary_dim/2. True: elements 2i and 2i+1 turn together, which
  /// is what a GGUF of architecture llama needs, because its Q and K rows are stored in that order.
  bool interleaved = false;
  RopeScaling scaling = RopeScaling::kNone;
  std::vector<float> inverse_frequencies;  ///< [rotary_dim / 2] radians a position
  float attention_scale = 1;               ///< cosines and sines are multiplied by it (yarn)
};

/// The configuration of a decoder-only model. What only one architecture needs joins as a member of
/// its own when that architecture's program does.
struct ModelConfig {
  std::string architecture;  ///< name of the model program: "llama"
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;  ///< divides `heads`
  uint32_t head_dim = 0;
  uint32_t intermediate = 0;
  uint32_t vocab = 0;  ///< rows of the embedding; a tokenizer may know fewer
  uint32_t max_positions = 0;
  float rms_eps = 0;
  bool tie_embeddings = false;
  bool attention_bias = false;         ///< of q, k and v
  bool attention_output_bias = false;  ///< of o
  bool mlp_bias = false;
  std::string activation;  ///< "silu"
  AtlasDType dtype =
      ATLAS_F32;  ///< config.json's, or a GGUF's embedding's; each tensor has its own
  RopeConfig rope;
  std::optional<uint32_t> bos_id;
  std::vector<uint32_t> eos_ids;  ///< any of these ends an answer; ascending, may be empty
};

/// Reads a Hugging Face config.json. `generation_json` may be empty; its end tokens join those of
/// config.json. Paths are for messages.
/// Errors: kInvalidArgument with file, key, value found and what is expected; kUnimplemented for an
/// architecture, activation or rope variant that Atlas does not run.
Result<ModelConfig> read_huggingface_config(std::string_view json, const std::string& path,
                                            std::string_view generation_json,
                                            const std::string& generation_path);

/// Reads the metadata of a GGUF file. `table` has the tensors of all its parts under Hugging Face
/// names; `rope_factors` is the data of rope_freqs.weight, empty if there is none. Errors as above.
Result<ModelConfig> read_gguf_config(const GgufFile& file, const TensorTable& table,
                                     std::span<const std::byte> rope_factors);

/// Checks the ranges that both formats share. `path` is for messages.
Status check_model_config(const ModelConfig& config, const std::string& path);
/// Checks the numbers from which frequencies are computed.
Status check_rope_settings(const RopeSettings& settings);
/// The last step of both readers: puts the end tokens in order, checks them and the rotary width,
/// and computes the frequencies.
Result<ModelConfig> finish_model_config(ModelConfig config, const RopeSettings& rope,
                                        const std::string& path);

/// The names of architectures that have a model program, for messages.
std::string_view supported_architectures();

}  // namespace atlas::model
