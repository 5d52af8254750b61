#include "tools/atlas-bench/synthetic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "daemon/model/checkpoint/ngram_hash.h"
#include "kernels/common/exl3.h"
#include "tools/common/json.h"

namespace atlas::bench {
namespace {

using tools::Json;

// ---- Shapes of Qwen3.8-Flash-Next. Sources: the config.json of Qwen/Qwen3.8-Flash-Next-FP8 and
// the tensor names of its BF16 release; header dumps of turboderp/Qwen3.8-Flash-Next-exl3.

constexpr uint64_t kHidden = 2560, kStreams = 4, kRank = 320, kVocab = 248320;
constexpr uint64_t kHeads = 24, kKvHeads = 2, kHeadDim = 256;
constexpr uint64_t kKeyHeads = 16, kValueHeads = 48, kDeltaDim = 128;
constexpr uint64_t kIndexHeads = 4, kIndexDim = 128;
constexpr uint64_t kExperts = 512, kExpertWidth = 640;
constexpr uint32_t kLayers = 48, kAttentionEvery = 4, kEndOfText = 248044;
constexpr uint64_t kNgramBase = 20000;
constexpr char kPrefix[] = "model.language_model";

Json flash_next_config() {
  Json layer_types = Json::array();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    layer_types.push_back(layer % kAttentionEvery == kAttentionEvery - 1 ? "full_attention"
                                                                         : "linear_attention");
  }
  const Json text = {
      {"model_type", "qwen4_exp_text"},
      {"dtype", "bfloat16"},
      {"hidden_size", kHidden},
      {"vocab_size", kVocab},
      {"num_hidden_layers", kLayers},
      {"layer_types", layer_types},
      {"full_attention_interval", kAttentionEvery},
      {"hidden_act", "silu"},
      {"num_attention_heads", kHeads},
      {"num_key_value_heads", kKvHeads},
      {"head_dim", kHeadDim},
      {"attention_bias", false},
      {"rms_norm_eps", 1e-6},
      {"max_position_embeddings", 262144},
      {"rope_parameters",
       {{"rope_type", "default"},
        {"rope_theta", 10000000},
        {"partial_rotary_factor", 0.25},
        {"mrope_section", {11, 11, 10}},
        {"mrope_interleaved", true}}},
      {"linear_num_key_heads", kKeyHeads},
      {"linear_num_value_heads", kValueHeads},
      {"linear_key_head_dim", kDeltaDim},
      {"linear_value_head_dim", kDeltaDim},
      {"linear_conv_kernel_dim", 4},
      {"output_gate_type", "sigmoid"},
      {"num_experts", kExperts},
      {"num_experts_per_tok", 10},
      {"moe_intermediate_size", kExpertWidth},
      {"shared_expert_intermediate_size", kExpertWidth},
      {"norm_topk_prob", true},
      {"hc_count", kStreams},
      {"hc_lowrank", kRank},
      {"indexer_n_heads", kIndexHeads},
      {"indexer_kv_heads", 1},
      {"indexer_head_dim", kIndexDim},
      {"indexer_budget", 2048},
      {"indexer_compress_ratio", 4},
      {"ple_layer_ids", {2}},
      {"ple_embed_dim", kHidden},
      {"ple_conv_kernel_size", 4},
      {"ngram_size", 3},
      {"heads_per_ngram", 8},
      {"ngram_vocab_size_base", kNgramBase},
      {"make_ngram_vocab_size_divisible_by", 128},
      {"split_ngram_parts", 1},
      {"mtp_num_hidden_layers", 1},
      {"mtp_use_dedicated_embeddings", false},
      {"bos_token_id", kEndOfText},
      {"eos_token_id", kEndOfText},
      {"tie_word_embeddings", false},
  };
  return {{"architectures", {"Qwen4ExpForConditionalGeneration"}},
          {"model_type", "qwen4_exp"},
          {"tie_word_embeddings", false},
          {"text_config", text}};
}

/// How the matrices of a checkpoint are stored.
struct Quant {
  enum class Kind { kBf16, kFp8, kNvfp4, kExl3 };
  Kind kind = Kind::kBf16;
  uint32_t bits = 0;  // of EXL3's experts
};

/// Bits of EXL3 are from `least` to less than `end`.
Result<Quant> parse_quant(const std::string& text, double least, double end) {
  if (text == "bf16") return Quant{Quant::Kind::kBf16};
  if (text == "fp8") return Quant{Quant::Kind::kFp8};
  if (text == "nvfp4") return Quant{Quant::Kind::kNvfp4};
  constexpr std::string_view kExl3 = "exl3:";
  double bits = 0;
  if (text.starts_with(kExl3)) {
    const char* last = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kExl3.size(), last, bits);
    if (error == std::errc() && stop == last && bits >= least && bits < end) {
      return Quant{Quant::Kind::kExl3, static_cast<uint32_t>(bits)};
    }
  }
  return invalid_argument(
      "there are no synthetic weights of '{}': bf16, fp8, nvfp4, or exl3:B with B from {} to less "
      "than {}, of which the whole part counts",
      text, least, end);
}

/// How safetensors name a type, and the bytes of an element.
struct ElementType {
  const char* name;
  uint64_t bytes;
};
ElementType element_type(AtlasDType dtype) {
  switch (dtype) {
    case ATLAS_F16:
      return {"F16", 2};
    case ATLAS_F32:
      return {"F32", 4};
    case ATLAS_I16:
      return {"I16", 2};
    case ATLAS_I32:
      return {"I32", 4};
    case ATLAS_U8:
      return {"U8", 1};
    case ATLAS_F8_E4M3:
      return {"F8_E4M3", 1};
    default:
      return {"BF16", 2};
  }
}

using Tensors = std::vector<SyntheticTensor>;

Tensors matrix_tensors(const Quant& quant, const std::string& module, uint64_t n, uint64_t k) {
  const uint64_t padded_n = kernels::exl3_padded(n), padded_k = kernels::exl3_padded(k);
  switch (quant.kind) {
    case Quant::Kind::kExl3:
      return {{module + ".trellis", ATLAS_I16, {padded_k / 16, padded_n / 16, 16 * quant.bits}},
              {module + ".suh", ATLAS_F16, {padded_k}},
              {module + ".svh", ATLAS_F16, {padded_n}},
              {module + ".mul1", ATLAS_I32, {}}};
    case Quant::Kind::kFp8:
      return {{module + ".weight", ATLAS_F8_E4M3, {n, k}},
              {module + ".weight_scale_inv", ATLAS_BF16, {(n + 127) / 128, (k + 127) / 128}}};
    case Quant::Kind::kNvfp4:
      return {{module + ".weight", ATLAS_U8, {n, k / 2}},
              {module + ".weight_scale", ATLAS_F8_E4M3, {n, k / 16}},
              {module + ".weight_scale_2", ATLAS_F32, {}},
              {module + ".input_scale", ATLAS_F32, {}}};
    case Quant::Kind::kBf16:
      break;
  }
  return {{module + ".weight", ATLAS_BF16, {n, k}}};
}

/// The header of one safetensors file whose data nobody writes.
class HoleFile {
 public:
  void add(const SyntheticTensor& tensor) {
    const uint64_t bytes = tensor.bytes();
    header_ +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                    header_.empty() ? "{" : ",", tensor.name, element_type(tensor.dtype).name,
                    fmt::join(tensor.dims, ","), end_, end_ + bytes);
    end_ += bytes;
  }

  Status write(const std::string& path) {
    std::string header = header_ + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    file.close();
    if (!file) return invalid_argument("'{}' cannot be written", path);
    std::error_code error;
    std::filesystem::resize_file(path, sizeof(length) + header.size() + end_, error);
    if (error) return invalid_argument("'{}' cannot be made larger: {}", path, error.message());
    return {};
  }

 private:
  std::string header_;
  uint64_t end_ = 0;
};

class FlashNext {
 public:
  explicit FlashNext(Quant quant) : quant_(quant) {}

  HoleFile tensors() {
    plain(std::string(kPrefix) + ".embed_tokens.weight", {kVocab, kHidden});
    dense("lm_head", kVocab, kHidden);
    mixer(std::string(kPrefix) + ".hyper_connection_mixer");
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const std::string scope = fmt::format("{}.layers.{}", kPrefix, layer);
      if (layer == 1) ngrams(scope + ".ple");
      if (layer % kAttentionEvery == kAttentionEvery - 1) {
        attention(scope + ".self_attn");
      } else {
        delta(scope + ".linear_attn");
      }
      rest_of_layer(scope, quant_);
    }
    plain("mtp.pre_fc_norm_embedding.weight", {kHidden});
    plain("mtp.pre_fc_norm_hidden.weight", {kStreams * kHidden});
    matrix("mtp.fc_embedding", kHidden, kHidden, quant_.bits + 1);
    matrix("mtp.fc_hidden", kHidden, kHidden, quant_.bits + 1);
    mixer("mtp.hyper_connection_mixer");
    attention("mtp.layers.0.self_attn");
    Quant draft = quant_;
    if (draft.kind == Quant::Kind::kNvfp4) draft.kind = Quant::Kind::kFp8;
    rest_of_layer("mtp.layers.0", draft);
    return std::move(file_);
  }

 private:
  void plain(const std::string& name, std::vector<uint64_t> dims) {
    file_.add({name, ATLAS_BF16, std::move(dims)});
  }
  void quantized(const std::string& module, uint64_t n, uint64_t k, const Quant& quant) {
    for (const SyntheticTensor& tensor : matrix_tensors(quant, module, n, k)) file_.add(tensor);
  }
  /// A matrix that only EXL3 quantizes.
  void matrix(const std::string& module, uint64_t n, uint64_t k, uint32_t bits) {
    const bool exl3 = quant_.kind == Quant::Kind::kExl3;
    quantized(module, n, k, exl3 ? Quant{Quant::Kind::kExl3, bits} : Quant{});
  }
  void dense(const std::string& module, uint64_t n, uint64_t k) {
    matrix(module, n, k, quant_.bits + 2);
  }

  void mixer(const std::string& scope) {
    plain(scope + ".hc_norm.weight", {kStreams * kHidden});
    plain(scope + ".input_mix_weight_down.weight", {kRank, kStreams * kHidden});
    plain(scope + ".input_mix_weight_up.weight", {kStreams * kHidden, kRank});
  }

  void delta(const std::string& scope) {
    const uint64_t keys = kKeyHeads * kDeltaDim, values = kValueHeads * kDeltaDim;
    dense(scope + ".in_proj_qkv", 2 * keys + values, kHidden);
    dense(scope + ".in_proj_z", values, kHidden);
    plain(scope + ".in_proj_b.weight", {kValueHeads, kHidden});
    plain(scope + ".in_proj_a.weight", {kValueHeads, kHidden});
    plain(scope + ".conv1d.weight", {2 * keys + values, 1, 4});
    plain(scope + ".A_log", {kValueHeads});
    plain(scope + ".dt_bias", {kValueHeads});
    plain(scope + ".norm.weight", {kDeltaDim});
    dense(scope + ".out_proj", kHidden, values);
  }

  void attention(const std::string& scope) {
    dense(scope + ".q_proj", 2 * kHeads * kHeadDim, kHidden);
    dense(scope + ".k_proj", kKvHeads * kHeadDim, kHidden);
    dense(scope + ".v_proj", kKvHeads * kHeadDim, kHidden);
    dense(scope + ".o_proj", kHidden, kHeads * kHeadDim);
    plain(scope + ".q_norm.weight", {kHeadDim});
    plain(scope + ".k_norm.weight", {kHeadDim});
    matrix(scope + ".indexer.index_qk_proj", (kIndexHeads + 1) * kIndexDim, kHidden, quant_.bits);
    plain(scope + ".indexer.q_layernorm.weight", {kIndexDim});
    plain(scope + ".indexer.k_layernorm.weight", {kIndexDim});
  }

  void ngrams(const std::string& scope) {
    plain(scope + ".key_proj.weight", {kStreams * kHidden, kHidden});
    plain(scope + ".value_proj.weight", {kHidden, kHidden});
    for (const char* norm : {"norm_key", "norm_query", "norm_conv"}) {
      plain(fmt::format("{}.{}.weight", scope, norm), {kStreams * kHidden});
    }
    plain(scope + ".conv1d.weight", {kStreams * kHidden, 1, 4});
    model::NgramConfig config;
    config.embed_dim = kHidden;
    config.ngram_size = 3;
    config.heads_per_ngram = 8;
    const model::NgramSeed seed{
        .vocab = static_cast<uint32_t>(kVocab), .size_base = kNgramBase, .divisible_by = 128};
    // The numbers are the released model's, with smaller heads: they cannot be refused.
    static_cast<void>(model::derive_ngram_constants(seed, &config));
    plain(scope + ".ple_embedding.ngram_embedding.shard_0.weight",
          {config.rows, config.row_width()});
  }

  void rest_of_layer(const std::string& scope, Quant experts) {
    for (const char* part : {".attn_hyper_connection", ".mlp_hyper_connection"}) {
      mixer(scope + part);
      plain(scope + part + ".block_inject_weight.weight", {kStreams, kStreams * kHidden});
    }
    plain(scope + ".mlp.gate.weight", {kExperts, kHidden});
    plain(scope + ".mlp.shared_expert_gate.weight", {1, kHidden});
    dense(scope + ".mlp.shared_expert.gate_proj", kExpertWidth, kHidden);
    dense(scope + ".mlp.shared_expert.up_proj", kExpertWidth, kHidden);
    dense(scope + ".mlp.shared_expert.down_proj", kHidden, kExpertWidth);
    if (experts.kind == Quant::Kind::kBf16) {
      plain(scope + ".mlp.experts.gate_up_proj", {kExperts, 2 * kExpertWidth, kHidden});
      plain(scope + ".mlp.experts.down_proj", {kExperts, kHidden, kExpertWidth});
      return;
    }
    for (uint64_t expert = 0; expert < kExperts; ++expert) {
      const std::string one = fmt::format("{}.mlp.experts.{}.", scope, expert);
      quantized(one + "gate_proj", kExpertWidth, kHidden, experts);
      quantized(one + "up_proj", kExpertWidth, kHidden, experts);
      quantized(one + "down_proj", kHidden, kExpertWidth, experts);
    }
  }

  Quant quant_;
  HoleFile file_;
};

// ---- Contents

class SyntheticWeights final : public plan::WeightSource {
 public:
  explicit SyntheticWeights(std::shared_ptr<const plan::WeightSource> shapes)
      : shapes_(std::move(shapes)), random_(kRandomBytes / sizeof(uint64_t)) {
    for (size_t i = 0; i < random_.size(); ++i) random_[i] = model::splitmix64(i);
  }

  std::vector<AtlasTensor> module_tensors(const std::string& module) const override {
    return shapes_->module_tensors(module);
  }
  Result<AtlasTensor> tensor(const std::string& name) const override {
    return shapes_->tensor(name);
  }
  std::string identity() const override { return shapes_->identity() + "synthetic"; }
  void drop_cache(const AtlasTensor&) const override {}

  Status read(const AtlasTensor& tensor, uint64_t offset, std::span<std::byte> out) const override {
    copy_random(tensor, offset, out);
    const std::string_view name(tensor.name);
    if (tensor.rank == 0) {
      fill_scalar(tensor, name, out);
    } else if (tensor.dtype == ATLAS_BF16) {
      limit_bf16(tensor, name, out);
    } else if (tensor.dtype == ATLAS_F16) {
      // Of EXL3: x is multiplied by signs, and outputs come back to the size of one sum of k.
      set_signs(out, name.ends_with("svh") ? 0x2700 : 0x3c00);
    } else if (tensor.dtype == ATLAS_F8_E4M3) {
      // Exponents of 2^-4 to 2^1 with any sign; block scales are positive.
      const bool scale = name.ends_with("_scale");
      for (std::byte& byte : out) {
        const auto code = static_cast<uint8_t>(byte);
        byte = static_cast<std::byte>((scale ? 0 : code & 0x80) | (0x18 + (code & 0x27)));
      }
    }
    return {};
  }

 private:
  static constexpr uint64_t kRandomBytes = 4u << 20;

  /// Bytes of one long random tape, from a place that the tensor's name decides.
  void copy_random(const AtlasTensor& tensor, uint64_t offset, std::span<std::byte> out) const {
    const uint64_t start = std::hash<std::string_view>()(tensor.name) % kRandomBytes / 64 * 64;
    const auto* tape = reinterpret_cast<const std::byte*>(random_.data());
    for (uint64_t done = 0; done < out.size();) {
      const uint64_t from = (start + offset + done) % kRandomBytes;
      const uint64_t count = std::min<uint64_t>(kRandomBytes - from, out.size() - done);
      std::memcpy(out.data() + done, tape + from, count);
      done += count;
    }
  }

  static void fill_scalar(const AtlasTensor& tensor, std::string_view name,
                          std::span<std::byte> out) {
    uint32_t word = std::bit_cast<uint32_t>(0.01f);  // of NVFP4: input and matrix scales
    if (name.ends_with(".mul1")) word = kernels::kExl3Mul1;
    if (tensor.bytes == sizeof(word) && out.size() == sizeof(word)) {
      std::memcpy(out.data(), &word, sizeof(word));
    }
  }

  /// Signs and mantissas stay random. Matrices: such that a sum of k products has the size of one
  /// element; vectors: from 2^-5 to 2^-3, as gains around zero are; scales of FP8 blocks: small and
  /// positive.
  static void limit_bf16(const AtlasTensor& tensor, std::string_view name,
                         std::span<std::byte> out) {
    uint32_t exponent = 123;
    if (tensor.rank == 2) {
      const auto k = static_cast<double>(tensor.dims[1]);
      exponent = static_cast<uint32_t>(126 - std::lround(std::log2(k) / 2));
    }
    const bool scale = name.ends_with("_scale_inv");
    if (scale) exponent = 121;
    for (size_t i = 0; i + 1 < out.size(); i += 2) {
      uint16_t bits;
      std::memcpy(&bits, out.data() + i, sizeof(bits));
      bits = static_cast<uint16_t>((scale ? 0 : bits & 0x8000) | exponent << 7 | (bits & 0x7f));
      std::memcpy(out.data() + i, &bits, sizeof(bits));
    }
  }

  static void set_signs(std::span<std::byte> out, uint16_t magnitude) {
    for (size_t i = 0; i + 1 < out.size(); i += 2) {
      uint16_t bits;
      std::memcpy(&bits, out.data() + i, sizeof(bits));
      bits = static_cast<uint16_t>((bits & 0x8000) | magnitude);
      std::memcpy(out.data() + i, &bits, sizeof(bits));
    }
  }

  std::shared_ptr<const plan::WeightSource> shapes_;
  std::vector<uint64_t> random_;
};

}  // namespace

uint64_t SyntheticTensor::bytes() const {
  uint64_t total = element_type(dtype).bytes;
  for (const uint64_t dim : dims) total *= dim;
  return total;
}

Result<std::vector<SyntheticTensor>> synthetic_matrix(const std::string& quant,
                                                      const std::string& module, uint64_t n,
                                                      uint64_t k) {
  ATLAS_ASSIGN_OR_RETURN(const Quant parsed, parse_quant(quant, 1, 9));
  if (parsed.kind == Quant::Kind::kNvfp4 && k % 16 != 0) {
    return invalid_argument("nvfp4 has a scale for each 16 inputs, and {} is no multiple of that",
                            k);
  }
  return matrix_tensors(parsed, module, n, k);
}

Status check_model_quant(const std::string& quant) {
  const auto parsed = parse_quant(quant, 2, 6);
  return parsed ? Status() : parsed.error();
}

Status check_matrix_quant(const std::string& quant) {
  const auto parsed = parse_quant(quant, 1, 9);
  return parsed ? Status() : parsed.error();
}

Status check_model(const std::string& model) {
  if (model == "qwen3.8-flash-next") return {};
  return invalid_argument("there is no synthetic model '{}': only qwen3.8-flash-next", model);
}

Status write_synthetic_checkpoint(const std::string& model, const std::string& quant,
                                  const std::string& folder) {
  ATLAS_RETURN_IF_ERROR(check_model(model));
  ATLAS_ASSIGN_OR_RETURN(const Quant parsed, parse_quant(quant, 2, 6));
  std::ofstream config(folder + "/config.json");
  config << tools::json_text(flash_next_config());
  config.close();
  if (!config) return invalid_argument("'{}/config.json' cannot be written", folder);
  return FlashNext(parsed).tensors().write(folder + "/model.safetensors");
}

std::shared_ptr<const plan::WeightSource> synthetic_weights(
    std::shared_ptr<const plan::WeightSource> shapes) {
  return std::make_shared<SyntheticWeights>(std::move(shapes));
}

}  // namespace atlas::bench
