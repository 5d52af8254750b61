// Model configurations of both formats: defaults, ranges, rope variants, end tokens.
#include <doctest/doctest.h>

#include "daemon/model/checkpoint/gguf.h"
#include "daemon/model/checkpoint/model_config.h"
#include "tests/unit/checkpoint/gguf_bytes.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;
using nlohmann::json;

TEST_SUITE_BEGIN("checkpoint");

namespace {

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 576},
          {"num_hidden_layers", 30},
          {"num_attention_heads", 9},
          {"intermediate_size", 1536},
          {"vocab_size", 49152}};
}

Result<ModelConfig> read(const json& config, const std::string& generation = "") {
  return read_huggingface_config(config.dump(), "config.json", generation, "generation.json");
}

Result<ModelConfig> read_with(const char* key, const json& value) {
  json config = llama();
  config[key] = value;
  return read(config);
}

void refused(const char* key, const json& value, std::initializer_list<const char*> parts,
             Code code = Code::kInvalidArgument) {
  CAPTURE(std::string(key) + ": " + value.dump());
  const auto result = read_with(key, value);
  check_error(result, code, {"config.json"});
  check_error(result, code, parts);
}

/// The config of a GGUF file whose tensors are those of `file`.
Result<ModelConfig> read(const GgufBytes& file) {
  const Bytes bytes(file.build());
  ATLAS_ASSIGN_OR_RETURN(const GgufFile parsed, GgufFile::parse(bytes.span(), "a.gguf"));
  TensorTable table;
  std::span<const std::byte> factors;
  for (TensorInfo tensor : parsed.tensors()) {
    tensor.name = table.intern(huggingface_name(tensor.name));
    table.add(tensor);
    if (tensor.name == "rope_freqs.weight") {
      factors = bytes.span().subspan(tensor.offset, tensor.bytes);
    }
  }
  ATLAS_RETURN_IF_ERROR(table.seal(std::vector<std::string>{"a.gguf"}));
  return read_gguf_config(parsed, table, factors);
}

void check_near(const std::vector<float>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    // One unit in the last place of float32: transformers' power function is not rounded exactly.
    CHECK_MESSAGE(std::abs(found[i] - expected[i]) <= expected[i] * 1.2e-7, "at ", i, ": ",
                  found[i], " against ", expected[i]);
  }
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace

TEST_CASE("config: absent keys have the defaults of transformers") {
  const auto config = read(llama());
  REQUIRE_MESSAGE(config, config.error().to_string());
  CHECK(config->architecture == "llama");
  CHECK(config->kv_heads == 9);
  CHECK(config->head_dim == 64);
  CHECK(config->max_positions == 2048);
  CHECK(config->rms_eps == 1e-6f);
  CHECK_FALSE(config->tie_embeddings);
  CHECK_FALSE(config->attention_bias);
  CHECK_FALSE(config->mlp_bias);
  CHECK(config->activation == "silu");
  CHECK(config->dtype == ATLAS_F32);
  CHECK(config->rope.theta == 10000);
  CHECK(config->rope.rotary_dim == 64);
  CHECK(config->rope.attention_scale == 1);
  CHECK_FALSE(config->rope.interleaved);
  CHECK(config->eos_ids.empty());
  CHECK_FALSE(config->bos_id);
  // JSON's null is an absent key.
  CHECK(read_with("num_key_value_heads", nullptr)->kv_heads == 9);
  CHECK(read_with("rope_scaling", nullptr));
}

TEST_CASE("config: dtype is read in both spellings") {
  CHECK(read_with("torch_dtype", "bfloat16")->dtype == ATLAS_BF16);
  CHECK(read_with("dtype", "float16")->dtype == ATLAS_F16);
  refused("dtype", "int4", {"'int4'"}, Code::kUnimplemented);
}

TEST_CASE("config: other architectures are refused by name, with the supported ones") {
  json config = llama();
  config["model_type"] = "mamba";
  config["architectures"] = {"MambaForCausalLM"};
  check_error(read(config), Code::kUnimplemented,
              {"'MambaForCausalLM'", "'mamba'", "Atlas runs llama, qwen3"});
  config["architectures"] = {"LlamaForSequenceClassification"};
  config["model_type"] = "llama";
  check_error(read(config), Code::kUnimplemented, {"LlamaForSequenceClassification"});
  config.erase("architectures");
  CHECK(read(config));
  config.erase("model_type");
  check_error(read(config), Code::kInvalidArgument, {"'model_type' is missing"});
  config["architectures"] = {"LlamaForCausalLM"};
  CHECK(read(config));
}

TEST_CASE("config: values of wrong types and out of range are refused with what was found") {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "vocab_size"}) {
    json config = llama();
    config.erase(key);
    check_error(read(config), Code::kInvalidArgument, {key, "is missing"});
    refused(key, 0, {" is 0; expected 1 to"});
    refused(key, -1, {key, "is -1"});
    refused(key, 1.5, {key, "is 1.5"});
    refused(key, "7", {key, "is \"7\""});
    refused(key, uint64_t{1} << 32, {key, "is 4294967296"});
    refused(key, 4000000000u, {"4000000000"});
  }
  refused("num_key_value_heads", 0, {"key-value heads is 0"});
  refused("num_key_value_heads", 2, {"9 attention heads cannot share 2"});
  refused("head_dim", 0, {"head size is 0"});
  refused("head_dim", 63, {"63", "even number"});
  refused("rms_norm_eps", -1.0, {"epsilon"});
  refused("rms_norm_eps", "tiny", {"rms_norm_eps", "a number"});
  refused("tie_word_embeddings", 1, {"tie_word_embeddings", "true or false"});
  refused("hidden_act", "gelu", {"'gelu'", "'silu'"}, Code::kUnimplemented);
  refused("rope_theta", 0, {"rope_theta is 0"});
  refused("rope_theta", 1e300, {"rope_theta"});
  refused("rope_scaling", 7, {"rope_scaling", "an object"});
  check_error(read_huggingface_config("[1]", "config.json", "", ""), Code::kInvalidArgument,
              {"config.json", "object"});
  check_error(read_huggingface_config("{\"a\": ", "config.json", "", ""), Code::kInvalidArgument,
              {"config.json", "not valid JSON"});
  check_error(read_huggingface_config("", "config.json", "", ""), Code::kInvalidArgument,
              {"config.json", "not valid JSON"});
}

TEST_CASE("config: end tokens of config.json and generation_config.json come together") {
  json config = llama();
  config["bos_token_id"] = 1;
  config["eos_token_id"] = 2;
  CHECK(read(config)->eos_ids == std::vector<uint32_t>{2});
  CHECK(read(config)->bos_id == 1u);
  const auto both = read(config, R"({"eos_token_id": [7, 2, 0], "bos_token_id": 5})");
  CHECK(both->eos_ids == std::vector<uint32_t>{0, 2, 7});
  CHECK(both->bos_id == 1u);
  config["eos_token_id"] = {9, 8};
  CHECK(read(config, "{}")->eos_ids == std::vector<uint32_t>{8, 9});
  refused("eos_token_id", 49152, {"end token 49152", "vocabulary of 49152"});
  refused("bos_token_id", 49152, {"begin token 49152"});
  refused("eos_token_id", "</s>", {"eos_token_id", "token id"});
  refused("eos_token_id", -1, {"eos_token_id", "is -1"});
  check_error(read(llama(), "[]"), Code::kInvalidArgument, {"generation.json"});
  check_error(read(llama(), "{"), Code::kInvalidArgument, {"generation.json", "not valid JSON"});
}

TEST_CASE("config: inverse frequencies agree with transformers in every variant") {
  for (const json& variant : golden()["rope"]) {
    CAPTURE(variant["name"].get<std::string>());
    const auto config = read(variant["config"]);
    REQUIRE_MESSAGE(config, config.error().to_string());
    check_near(config->rope.inverse_frequencies,
               variant["inverse_frequencies"].get<std::vector<double>>());
    CHECK(config->rope.attention_scale ==
          static_cast<float>(variant["attention_scale"].get<double>()));
  }
}

TEST_CASE("config: rope variants that are not computed, and broken ones, are refused") {
  refused("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}},
          {"rope_scaling", "'dynamic'", "default, linear, llama3 and yarn"}, Code::kUnimplemented);
  refused("rope_parameters", {{"rope_type", "longrope"}}, {"rope_parameters", "'longrope'"},
          Code::kUnimplemented);
  refused("rope_scaling", {{"type", "linear"}}, {"rope_scaling", "'factor' is missing"});
  refused("rope_scaling", {{"type", "linear"}, {"factor", 0}}, {"factor is 0"});
  refused("rope_scaling", {{"type", "linear"}, {"factor", "2"}}, {"factor", "a number"});
  json llama3 = {{"rope_type", "llama3"},
                 {"factor", 8.0},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 8192}};
  CHECK(read_with("rope_scaling", llama3));
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    json broken = llama3;
    broken.erase(key);
    refused("rope_scaling", broken, {key, "is missing"});
  }
  llama3["high_freq_factor"] = 1.0;
  refused("rope_scaling", llama3, {"high_freq_factor is 1", "more than low_freq_factor"});
  refused("partial_rotary_factor", 0, {"partial_rotary_factor is 0"});
  refused("partial_rotary_factor", 1.5, {"partial_rotary_factor is 1.5"});
  CHECK(read_with("partial_rotary_factor", 0.5)->rope.rotary_dim == 32);
}

TEST_CASE("config: GGUF metadata gives the same fields, with interleaved rope") {
  const auto config = read(small_llama());
  REQUIRE_MESSAGE(config, config.error().to_string());
  CHECK(config->hidden == 32);
  CHECK(config->layers == 1);
  CHECK(config->heads == 4);
  CHECK(config->kv_heads == 2);
  CHECK(config->head_dim == 8);
  CHECK(config->intermediate == 64);
  CHECK(config->vocab == 3);
  CHECK(config->max_positions == 128);
  CHECK(config->rms_eps == 1e-5f);
  CHECK(config->tie_embeddings);
  CHECK_FALSE(config->attention_bias);
  CHECK(config->rope.interleaved);
  CHECK(config->rope.theta == 10000);
  CHECK(config->rope.rotary_dim == 8);
  CHECK(config->dtype == ATLAS_F32);
  CHECK_FALSE(config->bos_id);
  // The key's token, and the control token whose text ends a turn.
  CHECK(config->eos_ids == std::vector<uint32_t>{1, 2});
}

TEST_CASE("config: a GGUF key that is missing, or a variant that is not run, is named") {
  const GgufBytes whole = small_llama();
  for (const char* key : {"llama.block_count", "llama.context_length", "llama.embedding_length",
                          "llama.feed_forward_length", "llama.attention.head_count",
                          "llama.attention.layer_norm_rms_epsilon"}) {
    GgufBytes file = whole;
    std::erase_if(file.pairs,
                  [&](const std::string& pair) { return pair.starts_with(gguf_text(key)); });
    check_error(read(file), Code::kInvalidArgument, {"a.gguf", key, "is missing"});
  }
  const auto with = [&](auto&& change) {
    GgufBytes file = whole;
    change(file);
    return read(file);
  };
  const Code no = Code::kUnimplemented, bad = Code::kInvalidArgument;
  check_error(with([](GgufBytes& f) { f.u32("llama.expert_count", 8); }), no, {"8 experts"});
  check_error(with([](GgufBytes& f) { f.u32("llama.attention.value_length", 16); }), no,
              {"values of 16", "keys of 8"});
  check_error(with([](GgufBytes& f) { f.u32("llama.attention.sliding_window", 64); }), no,
              {"sliding window of 64"});
  check_error(with([](GgufBytes& f) { f.text("llama.rope.scaling.type", "longrope"); }), no,
              {"'longrope'"});
  check_error(with([](GgufBytes& f) { f.u32("llama.rope.dimension_count", 10); }), bad,
              {"10 of the 8"});
  check_error(with([](GgufBytes& f) { f.u32("tokenizer.ggml.bos_token_id", 3); }), bad,
              {"begin token 3"});
  check_error(with([](GgufBytes& f) { f.u32("tokenizer.ggml.eot_token_id", 3); }), bad,
              {"end token 3"});
  check_error(with([](GgufBytes& f) { f.tensors.clear(); }), bad, {"token_embd.weight"});
  GgufBytes other;
  other.text("general.architecture", "qwen2");
  check_error(read(other), no, {"'qwen2'", "llama"});
  check_error(read(GgufBytes()), no, {"architecture ''"});
}

TEST_CASE("config: GGUF rope: factors divide, linear and yarn scale as in transformers") {
  const auto plain = read(small_llama())->rope.inverse_frequencies;
  GgufBytes file = small_llama();
  file.append("rope_freqs.weight", {4}, 0, floats({1, 2, 4, 8}));
  const auto divided = read(file);
  REQUIRE_MESSAGE(divided, divided.error().to_string());
  for (size_t i = 0; i < 4; ++i) {
    CHECK(divided->rope.inverse_frequencies[i] == plain[i] / static_cast<float>(1 << i));
  }
  file = small_llama();
  file.append("rope_freqs.weight", {3}, 0, floats({1, 2, 4}));
  check_error(read(file), Code::kInvalidArgument, {"rope_freqs.weight must be 4"});
  for (const float wrong : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    file = small_llama();
    file.append("rope_freqs.weight", {4}, 0, floats({1, wrong, 4, 8}));
    check_error(read(file), Code::kInvalidArgument, {"rope_freqs.weight has the factor", "at 1"});
  }
  file = small_llama();
  file.f32("llama.rope.scale_linear", 2);
  CHECK(read(file)->rope.inverse_frequencies[0] == 0.5f);
  file = small_llama();
  file.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4);
  CHECK(read(file)->rope.inverse_frequencies[0] == 0.25f);
  file = small_llama();
  file.text("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4);
  file.u32("llama.rope.scaling.original_context_length", 32);
  const auto yarn = read(file);
  json same = llama();
  same.update({{"hidden_size", 32}, {"num_attention_heads", 4}, {"max_position_embeddings", 128}});
  same["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  const auto expected = read(same);
  REQUIRE_MESSAGE(expected, expected.error().to_string());
  CHECK(yarn->rope.inverse_frequencies == expected->rope.inverse_frequencies);
  CHECK(yarn->rope.attention_scale == expected->rope.attention_scale);
  CHECK(yarn->rope.attention_scale > 1.1f);
}

TEST_SUITE_END();
