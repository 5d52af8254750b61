// The weights are a pure function of seed, tensor name and element, so that every format and every
// test sees the same model.
#include "tests/support/tiny_llama.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/ggml_blocks.h"

namespace atlas::testing {
namespace {

[[noreturn]] void give_up(const std::string& message) {
  std::fprintf(stderr, "tiny_llama: %s\n", message.c_str());
  std::abort();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) give_up("cannot write " + path);
}

/// splitmix64: https://prng.di.unimi.it/splitmix64.c
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

struct Weight {
  std::string name;
  uint64_t rows, columns;  // a vector has 0 columns
  bool is_matrix() const { return columns != 0; }
};

std::vector<Weight> weights_of(const TinyLlama& m) {
  std::vector<Weight> out{{"model.embed_tokens.weight", m.vocab, m.hidden}};
  const auto linear = [&](const std::string& module, uint64_t n, uint64_t k, bool bias) {
    out.push_back({module + ".weight", n, k});
    if (bias) out.push_back({module + ".bias", n, 0});
  };
  for (uint32_t layer = 0; layer < m.layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    out.push_back({at + "input_layernorm.weight", m.hidden, 0});
    linear(at + "self_attn.q_proj", m.heads * m.head_dim, m.hidden, m.attention_bias);
    linear(at + "self_attn.k_proj", m.kv_heads * m.head_dim, m.hidden, m.attention_bias);
    linear(at + "self_attn.v_proj", m.kv_heads * m.head_dim, m.hidden, m.attention_bias);
    linear(at + "self_attn.o_proj", m.hidden, m.heads * m.head_dim, m.attention_bias);
    out.push_back({at + "post_attention_layernorm.weight", m.hidden, 0});
    linear(at + "mlp.gate_proj", m.intermediate, m.hidden, m.mlp_bias);
    linear(at + "mlp.up_proj", m.intermediate, m.hidden, m.mlp_bias);
    linear(at + "mlp.down_proj", m.hidden, m.intermediate, m.mlp_bias);
  }
  out.push_back({"model.norm.weight", m.hidden, 0});
  if (!m.tie_embeddings) out.push_back({"lm_head.weight", m.vocab, m.hidden});
  return out;
}

// ---- The tokenizer: every byte, and merges of some frequent English pairs -----------------------

struct Merge {
  const char *left, *right;
};
// "\xC4\xA0" is the letter that stands for a space in the byte-level alphabet.
constexpr Merge kMerges[] = {
    {"\xC4\xA0", "t"}, {"\xC4\xA0", "a"},   {"h", "e"}, {"i", "n"},        {"r", "e"},
    {"o", "n"},        {"\xC4\xA0t", "he"}, {"e", "r"}, {"\xC4\xA0", "s"}, {"a", "t"},
    {"\xC4\xA0", "w"}, {"\xC4\xA0", "o"},   {"e", "n"}, {"\xC4\xA0", "c"}, {"i", "t"},
    {"i", "s"},        {"a", "n"},          {"o", "r"}, {"in", "g"},       {"\xC4\xA0", "f"},
    {"l", "l"}};
static_assert(kTinyFirstByte + 256 + std::size(kMerges) == kTinyVocabulary);
constexpr const char* kSpecials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

/// The printable letter of a byte in GPT-2's alphabet, as UTF-8.
std::string byte_letter(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int point = byte;
  if (!printable(byte)) {
    point = 256;
    for (int b = 0; b < byte; ++b) point += printable(b) ? 0 : 1;
  }
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 63))};
}

/// All tokens by id; ids beyond the tokenizer's are "<unused_N>".
std::vector<std::string> token_texts(const TinyLlama& m) {
  std::vector<std::string> out(std::begin(kSpecials), std::end(kSpecials));
  for (int byte = 0; byte < 256; ++byte) out.push_back(byte_letter(byte));
  for (const Merge& merge : kMerges) out.push_back(std::string(merge.left) + merge.right);
  while (out.size() < m.vocab) out.push_back("<unused_" + std::to_string(out.size()) + ">");
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string tokenizer_json(const TinyLlama& m) {
  std::string added, vocabulary, merges;
  const std::vector<std::string> tokens = token_texts(m);
  for (uint32_t id = 0; id < kTinyVocabulary; ++id) {
    vocabulary += (id == 0 ? "" : ",") + quoted(tokens[id]) + ":" + std::to_string(id);
  }
  for (uint32_t id = 0; id < std::size(kSpecials); ++id) {
    added += std::string(id == 0 ? "" : ",") + "{\"id\":" + std::to_string(id) +
             ",\"content\":" + quoted(kSpecials[id]) +
             ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
             "\"special\":true}";
  }
  for (const Merge& merge : kMerges) {
    merges += (merges.empty() ? "" : ",") + quoted(std::string(merge.left) + " " + merge.right);
  }
  return "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[" + added +
         "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
         "{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\","
         "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}]},"
         "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
         "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
         "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
         "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{" +
         vocabulary + "},\"merges\":[" + merges + "]}}\n";
}

// ---- safetensors
// ---------------------------------------------------------------------------------

const char* safetensors_type(AtlasDType dtype) {
  switch (dtype) {
    case ATLAS_F32:
      return "F32";
    case ATLAS_F16:
      return "F16";
    case ATLAS_BF16:
      return "BF16";
    default:
      give_up("safetensors files hold f32, f16 or bf16 here");
  }
}

const char* torch_type(AtlasDType dtype) {
  return dtype == ATLAS_F32 ? "float32" : dtype == ATLAS_F16 ? "float16" : "bfloat16";
}

std::string safetensors_file(const TinyLlama& m, const std::vector<Weight>& weights) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}", data;
  for (const Weight& w : weights) {
    const uint64_t begin = data.size();
    append_as(m.dtype, tiny_llama_weight(m, w.name, w.rows, w.columns), &data);
    header += ",\"" + w.name + "\":{\"dtype\":\"" + safetensors_type(m.dtype) + "\",\"shape\":[" +
              std::to_string(w.rows) + (w.is_matrix() ? "," + std::to_string(w.columns) : "") +
              "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) +
              "]}";
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string config_json(const TinyLlama& m) {
  const auto number = [](double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.9g", value);
    return std::string(text.data());
  };
  const auto boolean = [](bool value) { return value ? "true" : "false"; };
  std::string out = "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\"";
  const auto add = [&](const char* key, const std::string& value) {
    out += std::string(",\n  \"") + key + "\": " + value;
  };
  add("hidden_size", std::to_string(m.hidden));
  add("num_hidden_layers", std::to_string(m.layers));
  add("num_attention_heads", std::to_string(m.heads));
  add("num_key_value_heads", std::to_string(m.kv_heads));
  add("head_dim", std::to_string(m.head_dim));
  add("intermediate_size", std::to_string(m.intermediate));
  add("vocab_size", std::to_string(m.vocab));
  add("max_position_embeddings", std::to_string(m.max_positions));
  add("rms_norm_eps", number(m.rms_eps));
  add("rope_theta", number(m.rope_theta));
  if (!m.rope_scaling.empty()) add("rope_scaling", m.rope_scaling);
  add("hidden_act", "\"silu\"");
  add("tie_word_embeddings", boolean(m.tie_embeddings));
  add("attention_bias", boolean(m.attention_bias));
  add("mlp_bias", boolean(m.mlp_bias));
  add("bos_token_id", std::to_string(kTinyImStart));
  add("eos_token_id", std::to_string(kTinyImEnd));
  add("dtype", std::string("\"") + torch_type(m.dtype) + "\"");
  return out + "\n}\n";
}

void write_weights(const TinyLlama& m, const std::string& folder) {
  const std::vector<Weight> weights = weights_of(m);
  if (m.shards == 1) return write_file(folder + "/model.safetensors", safetensors_file(m, weights));
  std::string map;
  for (uint32_t shard = 0; shard < m.shards; ++shard) {
    std::array<char, 64> name{};
    std::snprintf(name.data(), name.size(), "model-%05u-of-%05u.safetensors", shard + 1, m.shards);
    const size_t begin = weights.size() * shard / m.shards;
    const size_t end = weights.size() * (shard + 1) / m.shards;
    const std::vector<Weight> part(weights.begin() + begin, weights.begin() + end);
    write_file(folder + "/" + name.data(), safetensors_file(m, part));
    for (const Weight& w : part) {
      map += (map.empty() ? "" : ",\n") + quoted(w.name) + ": " + quoted(name.data());
    }
  }
  write_file(folder + "/model.safetensors.index.json",
             "{\"metadata\": {\"total_size\": 0}, \"weight_map\": {\n" + map + "}}\n");
}

// ---- GGUF
// ------------------------------------------------------------------------------------------

/// Key-value pairs and tensor records of a GGUF file as they are written.
class GgufText {
 public:
  template <typename T>
  void raw(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(const std::string& value) {
    raw<uint64_t>(value.size());
    bytes_ += value;
  }
  void integer(const std::string& key, uint32_t value) { begin(key, 4), raw(value); }
  void number(const std::string& key, float value) { begin(key, 6), raw(value); }
  void boolean(const std::string& key, bool value) { begin(key, 7), raw<uint8_t>(value); }
  void string(const std::string& key, const std::string& value) { begin(key, 8), text(value); }
  void strings(const std::string& key, const std::vector<std::string>& values) {
    begin(key, 9), raw<uint32_t>(8), raw<uint64_t>(values.size());
    for (const std::string& value : values) text(value);
  }
  void integers(const std::string& key, const std::vector<int32_t>& values) {
    begin(key, 9), raw<uint32_t>(5), raw<uint64_t>(values.size());
    for (const int32_t value : values) raw(value);
  }
  uint64_t pairs() const { return pairs_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(const std::string& key, uint32_t type) {
    ++pairs_;
    text(key);
    raw(type);
  }
  std::string bytes_;
  uint64_t pairs_ = 0;
};

std::string gguf_name(const std::string& name) {
  constexpr std::array<std::array<const char*, 2>, 12> kNames = {
      {{"model.embed_tokens", "token_embd"},
       {"model.norm", "output_norm"},
       {"lm_head", "output"},
       {"self_attn.q_proj", "attn_q"},
       {"self_attn.k_proj", "attn_k"},
       {"self_attn.v_proj", "attn_v"},
       {"self_attn.o_proj", "attn_output"},
       {"post_attention_layernorm", "ffn_norm"},
       {"input_layernorm", "attn_norm"},
       {"mlp.gate_proj", "ffn_gate"},
       {"mlp.up_proj", "ffn_up"},
       {"mlp.down_proj", "ffn_down"}}};
  std::string out = name;
  if (out.starts_with("model.layers.")) out.replace(0, 13, "blk.");
  for (const auto& [from, to] : kNames) {
    const size_t at = out.find(from);
    if (at != std::string::npos) return out.replace(at, std::string(from).size(), to);
  }
  give_up("no GGUF name for " + name);
}

/// Rows of each head go from first half, second half to alternating: rope then turns neighbours.
std::vector<float> interleave_heads(const std::vector<float>& in, uint64_t heads,
                                    uint64_t head_dim) {
  std::vector<float> out(in.size());
  const uint64_t columns = in.size() / (heads * head_dim);
  for (uint64_t h = 0; h < heads; ++h) {
    for (uint64_t i = 0; i < head_dim; ++i) {
      const uint64_t from = h * head_dim + i;
      const uint64_t half = head_dim / 2;
      const uint64_t to = h * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
      std::copy_n(in.begin() + from * columns, columns, out.begin() + to * columns);
    }
  }
  return out;
}

void add_vocabulary(const TinyLlama& m, GgufText* header) {
  std::vector<int32_t> types(m.vocab, 5);  // unused
  std::fill_n(types.begin(), kTinyVocabulary, 1);
  std::fill_n(types.begin(), std::size(kSpecials), 3);
  std::vector<std::string> merges;
  for (const Merge& merge : kMerges) merges.push_back(std::string(merge.left) + " " + merge.right);
  header->string("tokenizer.ggml.model", "gpt2");
  header->string("tokenizer.ggml.pre", "smollm");
  header->strings("tokenizer.ggml.tokens", token_texts(m));
  header->integers("tokenizer.ggml.token_type", types);
  header->strings("tokenizer.ggml.merges", merges);
  header->integer("tokenizer.ggml.bos_token_id", kTinyImStart);
  header->integer("tokenizer.ggml.eos_token_id", kTinyImEnd);
  header->integer("tokenizer.ggml.unknown_token_id", kTinyEndOfText);
  header->integer("tokenizer.ggml.padding_token_id", kTinyImEnd);
  header->boolean("tokenizer.ggml.add_bos_token", false);
  header->string("tokenizer.chat_template", tiny_llama_chat_template());
}

void add_config(const TinyLlama& m, GgufText* header) {
  header->string("general.architecture", "llama");
  header->string("general.name", "tiny llama");
  header->integer("llama.block_count", m.layers);
  header->integer("llama.context_length", m.max_positions);
  header->integer("llama.embedding_length", m.hidden);
  header->integer("llama.feed_forward_length", m.intermediate);
  header->integer("llama.attention.head_count", m.heads);
  header->integer("llama.attention.head_count_kv", m.kv_heads);
  header->integer("llama.attention.key_length", m.head_dim);
  header->integer("llama.attention.value_length", m.head_dim);
  header->integer("llama.rope.dimension_count", m.head_dim);
  header->number("llama.rope.freq_base", m.rope_theta);
  header->number("llama.attention.layer_norm_rms_epsilon", m.rms_eps);
  header->integer("llama.vocab_size", m.vocab);
}

uint32_t ggml_type(AtlasDType dtype) {
  constexpr std::array<std::array<uint32_t, 2>, 11> kTypes = {{{ATLAS_F32, 0},
                                                               {ATLAS_F16, 1},
                                                               {ATLAS_BF16, 30},
                                                               {ATLAS_Q4_0, 2},
                                                               {ATLAS_Q4_1, 3},
                                                               {ATLAS_Q5_0, 6},
                                                               {ATLAS_Q5_1, 7},
                                                               {ATLAS_Q8_0, 8},
                                                               {ATLAS_Q4_K, 12},
                                                               {ATLAS_Q5_K, 13},
                                                               {ATLAS_Q6_K, 14}}};
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  give_up("no GGUF type for " + std::to_string(dtype));
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "atlas-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) give_up("cannot make a folder like " + pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

const char* tiny_llama_chat_template() {
  return "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
         "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
         "{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

std::vector<float> tiny_llama_weight(const TinyLlama& model, const std::string& name, uint64_t rows,
                                     uint64_t columns) {
  uint64_t key = mix(model.seed);
  for (const char c : name) key = mix(key ^ static_cast<unsigned char>(c));
  const bool norm = name.find("norm") != std::string::npos;
  float reach = columns != 0 ? std::sqrt(3.0f / static_cast<float>(columns)) : 0.1f;
  // Small rows let the layers, not the last token, decide the next one.
  if (name.starts_with("model.embed_tokens")) reach = 0.1f;
  std::vector<float> out(rows * std::max<uint64_t>(columns, 1));
  for (uint64_t i = 0; i < out.size(); ++i) {
    // 24 random bits make a float in [-1, 1) without rounding.
    const auto unit = static_cast<float>(mix(key + i) >> 40) / 8388608.0f - 1.0f;
    out[i] = (norm ? 1.0f : 0.0f) + reach * unit;
  }
  return out;
}

void write_tiny_llama_folder(const TinyLlama& model, const std::string& folder) {
  write_file(folder + "/config.json", config_json(model));
  write_weights(model, folder);
  if (!model.tokenizer) return;
  write_file(folder + "/tokenizer.json", tokenizer_json(model));
  write_file(folder + "/tokenizer_config.json",
             "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"bos_token\": \"<|im_start|>\", "
             "\"eos_token\": \"<|im_end|>\", \"unk_token\": \"<|endoftext|>\", \"pad_token\": "
             "\"<|im_end|>\", \"clean_up_tokenization_spaces\": false, \"chat_template\": " +
                 quoted(tiny_llama_chat_template()) + "}\n");
  write_file(folder + "/generation_config.json",
             "{\"bos_token_id\": 1, \"eos_token_id\": [2, 0]}\n");
}

void write_tiny_llama_gguf(const TinyLlama& model, const std::string& path) {
  constexpr uint64_t kAlignment = 32;
  GgufText header, records;
  add_config(model, &header);
  if (model.tokenizer) add_vocabulary(model, &header);
  std::string data;
  const std::vector<Weight> weights = weights_of(model);
  for (const Weight& w : weights) {
    std::vector<float> values = tiny_llama_weight(model, w.name, w.rows, w.columns);
    if (w.name.find("q_proj") != std::string::npos) {
      values = interleave_heads(values, model.heads, model.head_dim);
    } else if (w.name.find("k_proj") != std::string::npos) {
      values = interleave_heads(values, model.kv_heads, model.head_dim);
    }
    const bool vocabulary = w.name == "model.embed_tokens.weight" || w.name == "lm_head.weight";
    const AtlasDType dtype = !w.is_matrix() ? AtlasDType{ATLAS_F32}
                             : vocabulary   ? model.embedding_dtype
                                            : model.dtype;
    records.text(gguf_name(w.name));
    records.raw<uint32_t>(w.is_matrix() ? 2 : 1);
    if (w.is_matrix()) records.raw<uint64_t>(w.columns);
    records.raw<uint64_t>(w.rows);
    records.raw<uint32_t>(ggml_type(dtype));
    records.raw<uint64_t>(data.size());
    append_as(dtype, values, &data);
    data.append((kAlignment - data.size() % kAlignment) % kAlignment, '\0');
  }
  GgufText start;
  start.raw<uint32_t>(0x46554747);
  start.raw<uint32_t>(3);
  start.raw<uint64_t>(weights.size());
  start.raw<uint64_t>(header.pairs());
  std::string file = start.bytes() + header.bytes() + records.bytes();
  file.append((kAlignment - file.size() % kAlignment) % kAlignment, '\0');
  write_file(path, file + data);
}

}  // namespace atlas::testing
