// What a Checkpoint holds, and the readers that fill it. Private to this room.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/input_file.h"
#include "daemon/model/checkpoint/checkpoint.h"
#include "daemon/model/checkpoint/gguf.h"

namespace atlas::model {

/// A text file beside the weights; empty if it is not there.
struct TextFile {
  std::string path;
  std::string text;
};

struct CheckpointState {
  std::vector<InputFile> files;  ///< those with tensors
  TensorTable table;
  ModelConfig config;
  std::string format_name;
  std::optional<std::string> chat_template;
  SpecialTokens special_tokens;
  std::vector<std::string> notes;

  TextFile tokenizer_json, tokenizer_config_json, generation_config_json;
  std::unique_ptr<GgufFile> gguf;  ///< null for Hugging Face folders

  std::vector<std::string> paths() const;
};

/// Fills `state` from a folder, or from `single`, a .safetensors file in it (empty: find the
/// files).
Status read_huggingface_folder(const std::string& folder, const std::string& single,
                               const OpenProgress& progress, CheckpointState* state);
/// Fills `state` from a GGUF file and the other parts of a split one.
Status read_gguf_checkpoint(const std::string& path, const OpenProgress& progress,
                            CheckpointState* state);
/// The vocabulary in the metadata of `file`, or nothing if it has none.
Result<TokenizerSource> read_gguf_vocabulary(const GgufFile& file);

}  // namespace atlas::model
