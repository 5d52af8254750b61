// A tiny qwen3_moe folder, random, whose linears can be put into every weight format: for tests of
// checkpoints that mix formats, are damaged or contradict their config.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tests/support/exl3_reference.h"
#include "tests/support/scaled_weights.h"
#include "tests/unit/checkpoint/safetensors_folder.h"

namespace atlas::testing {

/// A tensor of raw bytes.
inline FileTensor file_tensor(const std::string& dtype, std::vector<uint64_t> shape,
                              const std::vector<uint8_t>& bytes) {
  return {dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

/// The name that safetensors has for a type.
inline std::string file_dtype(AtlasDType dtype) {
  static const std::map<AtlasDType, std::string> kNames = {
      {ATLAS_F32, "F32"}, {ATLAS_BF16, "BF16"},       {ATLAS_F16, "F16"},
      {ATLAS_U8, "U8"},   {ATLAS_F8_E4M3, "F8_E4M3"}, {ATLAS_F8_UE8M0, "F8_E8M0"}};
  return kNames.at(dtype);
}

struct SmallMoe {
  static constexpr uint32_t kHidden = 64, kInner = 160, kExperts = 3, kVocab = 96;

  SmallMoe() {
    config = {{"architectures", {"Qwen3MoeForCausalLM"}},
              {"model_type", "qwen3_moe"},
              {"dtype", "bfloat16"},
              {"vocab_size", kVocab},
              {"hidden_size", kHidden},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 16},
              {"hidden_act", "silu"},
              {"rms_norm_eps", 1e-6},
              {"max_position_embeddings", 256},
              {"eos_token_id", 2},
              {"tie_word_embeddings", false},
              {"num_hidden_layers", 1},
              {"intermediate_size", kInner},
              {"num_experts", kExperts},
              {"num_experts_per_tok", 2},
              {"moe_intermediate_size", kInner}};
    matrix("model.embed_tokens", kVocab, kHidden);
    matrix("lm_head", kVocab, kHidden);
    const std::string layer = "model.layers.0.";
    matrix(layer + "self_attn.q_proj", 64, kHidden);
    matrix(layer + "self_attn.k_proj", 32, kHidden);
    matrix(layer + "self_attn.v_proj", 32, kHidden);
    matrix(layer + "self_attn.o_proj", kHidden, 64);
    matrix(layer + "mlp.gate", kExperts, kHidden);
    for (uint32_t e = 0; e < kExperts; ++e) {
      matrix(expert(e, "gate_proj"), kInner, kHidden);
      matrix(expert(e, "up_proj"), kInner, kHidden);
      matrix(expert(e, "down_proj"), kHidden, kInner);
    }
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      tensors[layer + norm + ".weight"] = {"BF16", {kHidden}, bf16_data(kHidden, 1)};
    }
    for (const char* norm : {"q_norm", "k_norm"}) {
      tensors[layer + "self_attn." + norm + ".weight"] = {"BF16", {16}, bf16_data(16, 1)};
    }
    tensors["model.norm.weight"] = {"BF16", {kHidden}, bf16_data(kHidden, 1)};
  }

  static std::string expert(uint32_t e, const std::string& projection) {
    return "model.layers.0.mlp.experts." + std::to_string(e) + "." + projection;
  }

  void matrix(const std::string& module, uint32_t n, uint32_t k) {
    sizes[module] = {n, k};
    std::normal_distribution<float> normal(0, 0.1f);
    std::vector<uint16_t> halves(size_t{n} * k);
    for (uint16_t& half : halves) {
      const float value = normal(random);
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      half = static_cast<uint16_t>(bits >> 16);
    }
    tensors[module + ".weight"] = {"BF16", {n, k}, bytes_of(halves)};
  }

  void scaled(const std::string& module, const test::ScaledWeights& weights) {
    tensors.erase(module + ".weight");
    tensors[module + "." + weights.name] =
        file_tensor(file_dtype(weights.dtype), {weights.n, weights.columns}, weights.codes);
    for (const test::MoreTensor& more : weights.more) {
      tensors[module + "." + more.name] =
          file_tensor(file_dtype(more.dtype), more.dims, more.bytes);
    }
  }
  /// `compressed`: the names of compressed-tensors.
  void nvfp4(const std::string& module, bool compressed = false) {
    const auto [n, k] = sizes.at(module);
    scaled(module, test::nvfp4_weights(n, k, compressed, compressed ? 100.0f : 0.01f));
  }
  void fp8(const std::string& module, test::Fp8Kind kind = test::Fp8Kind::kBlockF32) {
    const auto [n, k] = sizes.at(module);
    scaled(module, test::fp8_weights(n, k, kind));
  }
  void exl3(const std::string& module, const std::string& codebook = "mul1", double bits = 3) {
    const auto [n, k] = sizes.at(module);
    const uint32_t padded_n = (n + 127) / 128 * 128, padded_k = (k + 127) / 128 * 128;
    const test::SlowMatrix made(codebook, bits, padded_n, padded_k, 1);
    tensors.erase(module + ".weight");
    tensors[module + ".trellis"] = {
        "I16", {padded_k / 16, padded_n / 16, made.tile_words()}, bytes_of(made.words)};
    tensors[module + ".suh"] = {"F16", {padded_k}, bytes_of(made.suh)};
    tensors[module + ".svh"] = {"F16", {padded_n}, bytes_of(made.svh)};
    const std::vector<uint32_t> marker = {codebook == "mcg" ? 0xcbac1fedu : 0x83dcd12du};
    if (codebook != "3inst") tensors[module + "." + codebook] = {"I32", {}, bytes_of(marker)};
  }

  void write(const TempDir& dir) const {
    write_text(dir.file("config.json"), config.dump());
    write_text(dir.file("model.safetensors"), safetensors_text(tensors));
  }

  nlohmann::json config;
  FileTensors tensors;
  std::map<std::string, std::pair<uint32_t, uint32_t>> sizes;
  std::mt19937 random{1};
};

}  // namespace atlas::testing
