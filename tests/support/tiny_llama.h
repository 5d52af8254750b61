// Writes tiny llama checkpoints with random but reproducible weights, for tests of what loads,
// plans and runs models. A folder and a GGUF file with the same options hold the same model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::testing {

/// A folder that is removed, with what it holds, at the end of the scope.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  /// The path of `name` inside the folder.
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// The model to write. Sizes must fit: heads a multiple of kv_heads, head_dim even, and for GGUF
/// every row a whole number of the type's blocks (32, or 256 for the K types).
struct TinyLlama {
  uint32_t hidden = 64, layers = 2, heads = 4, kv_heads = 2, head_dim = 16;
  uint32_t intermediate = 96;
  uint32_t vocab = 280;  ///< at least kTinyVocabulary; ids beyond it have no text
  uint32_t max_positions = 512;
  float rope_theta = 10000, rms_eps = 1e-5f;
  bool tie_embeddings = true;
  bool attention_bias = false, mlp_bias = false;
  bool tokenizer = true;  ///< byte-level BPE with a ChatML template, and generation_config.json
  uint64_t seed = 1;

  /// Type of matrices: ATLAS_F32, ATLAS_F16, ATLAS_BF16, and in GGUF also Q4_0, Q4_1, Q5_0, Q5_1,
  /// Q8_0, Q4_K, Q5_K, Q6_K. Norms and biases are f32 in GGUF and of this type in safetensors.
  AtlasDType dtype = ATLAS_BF16;
  AtlasDType embedding_dtype = ATLAS_BF16;  ///< of embedding and head, GGUF only
  uint32_t shards = 1;                      ///< safetensors: more than 1 writes an index
  std::string rope_scaling;  ///< safetensors: JSON text for "rope_scaling"; empty: none
};

/// Ids of the tiny tokenizer: three control tokens, 256 bytes, then merges.
inline constexpr uint32_t kTinyEndOfText = 0, kTinyImStart = 1, kTinyImEnd = 2;
inline constexpr uint32_t kTinyFirstByte = 3;  ///< the id of byte b is kTinyFirstByte + b
inline constexpr uint32_t kTinyVocabulary = 280;

/// The weight `name` ("model.layers.0.self_attn.q_proj.weight") in float32 before any rounding,
/// row-major: uniform in +-sqrt(3/k) for matrices of k columns (embeddings +-0.1), 1 +- 0.1 for
/// norms,
/// +-0.1 for biases.
std::vector<float> tiny_llama_weight(const TinyLlama& model, const std::string& name, uint64_t rows,
                                     uint64_t columns);

/// Writes config.json, model.safetensors (or shards and an index) and the tokenizer's files into
/// the existing folder `folder`. Ends the test program with a message if a file cannot be written.
void write_tiny_llama_folder(const TinyLlama& model, const std::string& folder);
/// Writes one GGUF v3 file; rows of Q and K are permuted as GGUF's converters do.
void write_tiny_llama_gguf(const TinyLlama& model, const std::string& path);

/// The ChatML template of the tiny tokenizer.
const char* tiny_llama_chat_template();

}  // namespace atlas::testing
