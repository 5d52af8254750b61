// The vocabulary in a GGUF file's metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace atlas::model {

/// Keys tokenizer.ggml.* as they stand in the file; token texts are in the file's own alphabet.
struct GgufVocabulary {
  std::string model, pre;
  std::vector<std::string> tokens;
  std::vector<int32_t> token_types;
  std::vector<std::string> merges;
  std::optional<uint32_t> bos, eos, eot, unknown, padding;
  std::optional<bool> add_bos;
};

}  // namespace atlas::model
