// Builds GGUF files byte by byte, right or wrong as a test wants them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace atlas::testing {

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
inline std::string gguf_text(const std::string& text) { return raw<uint64_t>(text.size()) + text; }

struct GgufBytes {
  uint32_t magic = 0x46554747, version = 3;
  std::vector<std::string> pairs, tensors;
  std::string data;
  uint64_t extra_pairs = 0, extra_tensors = 0;  ///< claimed beyond those that are there
  uint64_t alignment = 32;

  /// A pair whose value bytes are given as they stand.
  GgufBytes& pair(const std::string& key, uint32_t type, const std::string& value) {
    pairs.push_back(gguf_text(key) + raw(type) + value);
    return *this;
  }
  GgufBytes& u32(const std::string& key, uint32_t value) { return pair(key, 4, raw(value)); }
  GgufBytes& f32(const std::string& key, float value) { return pair(key, 6, raw(value)); }
  GgufBytes& text(const std::string& key, const std::string& value) {
    return pair(key, 8, gguf_text(value));
  }
  GgufBytes& texts(const std::string& key, const std::vector<std::string>& values) {
    std::string all = raw<uint32_t>(8) + raw<uint64_t>(values.size());
    for (const std::string& value : values) all += gguf_text(value);
    return pair(key, 9, all);
  }
  GgufBytes& i32s(const std::string& key, const std::vector<int32_t>& values) {
    std::string all = raw<uint32_t>(5) + raw<uint64_t>(values.size());
    for (const int32_t value : values) all += raw(value);
    return pair(key, 9, all);
  }
  /// `dims` as the file has them: the row first.
  GgufBytes& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                    uint64_t offset) {
    std::string record = gguf_text(name) + raw<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) record += raw(dim);
    tensors.push_back(record + raw(type) + raw(offset));
    return *this;
  }
  /// A tensor behind those that are there, with `bytes` bytes of data.
  GgufBytes& append(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                    const std::string& bytes) {
    data.append((alignment - data.size() % alignment) % alignment, '\0');
    tensor(name, dims, type, data.size());
    data += bytes;
    return *this;
  }

  std::string build() const {
    std::string out = raw(magic) + raw(version) + raw<uint64_t>(tensors.size() + extra_tensors) +
                      raw<uint64_t>(pairs.size() + extra_pairs);
    for (const std::string& pair : pairs) out += pair;
    for (const std::string& record : tensors) out += record;
    out.append((alignment - out.size() % alignment) % alignment, '\0');
    return out + data;
  }
};

/// A llama of one layer without its layer's tensors: enough for a config and a vocabulary.
inline GgufBytes small_llama() {
  GgufBytes file;
  file.text("general.architecture", "llama").u32("llama.block_count", 1);
  file.u32("llama.context_length", 128).u32("llama.embedding_length", 32);
  file.u32("llama.feed_forward_length", 64).u32("llama.attention.head_count", 4);
  file.u32("llama.attention.head_count_kv", 2).f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  file.text("tokenizer.ggml.model", "gpt2")
      .texts("tokenizer.ggml.tokens", {"a", "b", "<|im_end|>"});
  file.i32s("tokenizer.ggml.token_type", {1, 1, 3}).texts("tokenizer.ggml.merges", {"a b"});
  file.u32("tokenizer.ggml.eos_token_id", 1);
  file.append("token_embd.weight", {32, 3}, 0, std::string(384, '\1'));
  return file;
}

}  // namespace atlas::testing
