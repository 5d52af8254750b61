// Folders with a config.json and one safetensors file, written tensor by tensor.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/model/checkpoint/checkpoint.h"
#include "tests/support/tiny_llama.h"
#include "tests/unit/checkpoint/support.h"

namespace atlas::testing {

/// One tensor: its type as safetensors spells it, and its bytes.
struct FileTensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string data;
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// bf16 data of `count` elements: element i is the upper half of float(i), or `value` everywhere.
inline std::string bf16_data(uint64_t count, float value) {
  std::vector<uint16_t> out(count);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  for (uint16_t& one : out) one = static_cast<uint16_t>(bits >> 16);
  return bytes_of(out);
}

/// 16-bit data whose element i is the number i, so that a slice shows where it begins.
inline std::string numbered_data(uint64_t count) {
  std::vector<uint16_t> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint16_t>(i);
  return bytes_of(out);
}

using FileTensors = std::map<std::string, FileTensor>;

inline std::string safetensors_text(const FileTensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + data;
}

/// The tensors of a safetensors file that is in order, read by nothing of Atlas.
inline FileTensors read_file_tensors(const std::string& path) {
  const std::string text = read_text(path);
  uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof(length));
  FileTensors tensors;
  const auto header = nlohmann::json::parse(text.substr(8, length));
  for (const auto& [name, one] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = one["data_offsets"][0], end = one["data_offsets"][1];
    tensors[name] = {one["dtype"], one["shape"], text.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

inline uint32_t crc32(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

inline Result<model::Checkpoint> open_folder(const TempDir& dir, const nlohmann::json& config,
                                             const FileTensors& tensors) {
  write_text(dir.file("config.json"), config.dump());
  write_text(dir.file("model.safetensors"), safetensors_text(tensors));
  return model::Checkpoint::open(dir.path());
}

/// The config.json of a small qwen4_exp: two layers, the second one attends, n-grams in the first.
inline nlohmann::json small_qwen4() {
  return {{"architectures", {"Qwen4ExpForCausalLM"}},
          {"model_type", "qwen4_exp_text"},
          {"hidden_size", 8},
          {"num_hidden_layers", 2},
          {"layer_types", {"linear_attention", "full_attention"}},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 8},
          {"vocab_size", 256},
          {"eos_token_id", 2},
          {"linear_num_key_heads", 2},
          {"linear_num_value_heads", 4},
          {"linear_key_head_dim", 4},
          {"linear_value_head_dim", 4},
          {"num_experts", 3},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 2},
          {"shared_expert_intermediate_size", 4},
          {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}}},
          {"hc_count", 4},
          {"hc_lowrank", 4},
          {"indexer_n_heads", 2},
          {"indexer_kv_heads", 1},
          {"indexer_head_dim", 4},
          {"indexer_budget", 16},
          {"indexer_compress_ratio", 4},
          {"ple_layer_ids", {1}},
          {"ple_embed_dim", 8},
          {"ngram_size", 3},
          {"heads_per_ngram", 2},
          {"ngram_vocab_size_base", 97},
          {"make_ngram_vocab_size_divisible_by", 8},
          {"split_ngram_parts", 4}};
}

}  // namespace atlas::testing
