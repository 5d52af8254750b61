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
#include "daemon/plan/declared_formats.h"
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

/// How a layer mixes positions.
enum class Mixer {
  kAttention,        ///< dense causal attention
  kSparseAttention,  ///< QSA: attention over blocks that an indexer selects
  kDelta,            ///< Gated DeltaNet
};

/// Mixture of experts. `layers[i]`: whether layer i has experts; the others have a plain MLP of
/// ModelConfig::intermediate.
struct MoeConfig {
  uint32_t experts = 0;
  uint32_t experts_per_token = 0;
  uint32_t intermediate = 0;
  uint32_t shared_intermediate = 0;  ///< 0: no shared expert
  bool normalize_top = true;         ///< the chosen experts' weights are divided by their sum
  std::vector<bool> layers;
};

/// Gated DeltaNet.
struct DeltaConfig {
  uint32_t key_heads = 0;  ///< divides value_heads
  uint32_t value_heads = 0;
  uint32_t key_dim = 0;  ///< of one head
  uint32_t value_dim = 0;
  uint32_t conv_kernel = 0;   ///< taps of the causal depthwise convolution
  bool sigmoid_gate = false;  ///< output gate: sigmoid(z), else silu(z)
  bool fused_projections =
      false;  ///< qwen3_next: in_proj_qkvz and in_proj_ba, interleaved by key head
};

/// The indexer of sparse attention: mean keys of blocks of `ratio` tokens, scored by `heads` heads;
/// `budget / ratio` blocks are attended to.
struct IndexerConfig {
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  uint32_t budget = 0;  ///< tokens; a multiple of ratio
  uint32_t ratio = 0;
};

/// Gated residual streams ("hyper-connections").
struct StreamsConfig {
  uint32_t count = 0;
  uint32_t low_rank = 0;
};

/// Hashed n-gram embeddings (PLE): table rows of n-grams of 2 .. ngram_size tokens,
/// `heads_per_ngram` rows each, concatenated to `embed_dim`, joined to the residual streams before
/// `layer`.
struct NgramConfig {
  uint32_t layer = 0;  ///< zero-based
  uint32_t embed_dim = 0;
  uint32_t conv_kernel = 0;  ///< taps; their dilation is ngram_size
  uint32_t ngram_size = 0;   ///< 2..4
  uint32_t heads_per_ngram = 0;
  uint32_t eos_id = 0;  ///< cuts the window of a hash
  uint32_t shards = 0;  ///< tensors of the table: shard_0.weight ...; 0: one tensor, weight
  std::vector<uint64_t> multipliers;   ///< [ngram_size], derived from the seed
  std::vector<uint64_t> head_sizes;    ///< [heads]: rows of each head, primes
  std::vector<uint64_t> head_offsets;  ///< [heads]: first row of each head
  uint64_t rows = 0;                   ///< of the table, padded
  uint32_t heads() const { return (ngram_size - 1) * heads_per_ngram; }
  uint32_t row_width() const { return embed_dim / heads(); }
};

/// The configuration of a decoder-only model. What only some architectures need is optional.
struct ModelConfig {
  std::string architecture;      ///< name of the model program: "llama"
  std::string prefix = "model";  ///< of the trunk's tensors: "model" or "model.language_model"
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;  ///< divides `heads`
  uint32_t head_dim = 0;
  uint32_t intermediate = 0;  ///< of a plain MLP; 0 where every layer has experts
  uint32_t vocab = 0;         ///< rows of the embedding; a tokenizer may know fewer
  uint32_t max_positions = 0;
  float rms_eps = 0;
  bool tie_embeddings = false;
  bool attention_bias = false;         ///< of q, k and v
  bool attention_output_bias = false;  ///< of o
  bool mlp_bias = false;
  bool attention_gate = false;  ///< q_proj holds a query and a gate a head: out *= sigmoid(gate)
  bool qk_norm = false;         ///< RMS norm of every query and key head before rope
  bool centered_norms = false;  ///< norms multiply by 1 + weight (but for DeltaNet's own norm)
  std::string activation;       ///< "silu"
  AtlasDType dtype =
      ATLAS_F32;  ///< config.json's, or a GGUF's embedding's; each tensor has its own
  RopeConfig rope;
  std::vector<Mixer> mixers;  ///< [layers]
  std::optional<MoeConfig> moe;
  std::optional<DeltaConfig> delta;
  std::optional<IndexerConfig> indexer;
  std::optional<StreamsConfig> streams;
  std::optional<NgramConfig> ngram;
  /// What config.json says of its weights' formats; nothing: it has no such entry.
  std::optional<plan::DeclaredFormats> declared_formats;
  bool draft_head = false;  ///< the checkpoint has an MTP layer that is run to draft tokens
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

/// Checks the ranges that both formats share, but for an intermediate size of 0, which only a model
/// whose layers all have experts may have. `path` is for messages.
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
