// The files beside the weights: configuration and tokenizer.
#pragma once

#include <string>

#include "tools/atlas-quantize/source.h"
#include "tools/common/json.h"

namespace atlas::quantize {

/// Writes into `folder` what a Hugging Face folder has beside its weights.
/// From a folder: config.json with `quantization` as its quantization_config (none if null) and
/// `tied` as tie_word_embeddings, the rest unchanged; tokenizer.json, tokenizer_config.json,
/// generation_config.json, special_tokens_map.json and chat_template.jinja as they are.
/// From a GGUF of architecture llama: config.json, generation_config.json, and, if it has a
/// vocabulary, tokenizer.json and tokenizer_config.json made from its metadata.
/// Errors: kUnimplemented for a GGUF with scaled rope or biases that config.json cannot say.
Status export_files(const Source& source, const std::string& model_path, const std::string& folder,
                    const tools::Json& quantization, bool tied);

/// config.json of a GGUF of architecture llama.
Result<tools::Json> gguf_config_json(const model::ModelConfig& config);
/// tokenizer.json with the same ids as the GGUF's vocabulary. Errors: as Tokenizer::from_gguf.
Result<std::string> gguf_tokenizer_json(const model::GgufVocabulary& vocabulary);

}  // namespace atlas::quantize
