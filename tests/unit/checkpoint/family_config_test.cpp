// Configurations of qwen4_exp and its relatives: families, defaults, nesting, and each refusal.
#include <doctest/doctest.h>

#include "daemon/model/checkpoint/model_config.h"
#include "daemon/model/checkpoint/ngram_hash.h"
#include "tests/unit/checkpoint/safetensors_folder.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;
using nlohmann::json;

TEST_SUITE_BEGIN("checkpoint");

namespace {

Result<ModelConfig> read(const json& config, const std::string& generation = "") {
  return read_huggingface_config(config.dump(), "config.json", generation, "generation.json");
}

/// The text_config of the released model, as its FP8 package has it.
json released_text() {
  return json::parse(R"({
    "model_type": "qwen4_exp_text", "dtype": "bfloat16", "hidden_size": 2560,
    "vocab_size": 248320, "num_hidden_layers": 48, "full_attention_interval": 4,
    "hidden_act": "silu", "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256,
    "attention_bias": false, "rms_norm_eps": 1e-06, "max_position_embeddings": 262144,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000,
      "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": true},
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    "output_gate_type": "sigmoid", "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640,
    "hc_count": 4, "hc_lowrank": 320, "indexer_n_heads": 4, "indexer_kv_heads": 1,
    "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4,
    "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3,
    "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000,
    "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128,
    "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
    "mtp": {"hybrid": true, "layer_types": ["full_attention"], "num_hidden_layers": 1},
    "bos_token_id": 248044, "eos_token_id": 248044, "pad_token_id": null,
    "tie_word_embeddings": false})");
}

json released() {
  return {{"architectures", {"Qwen4ExpForConditionalGeneration"}},
          {"model_type", "qwen4_exp"},
          {"tie_word_embeddings", false},
          {"image_token_id", 248056},
          {"text_config", released_text()},
          {"vision_config", {{"depth", 27}, {"hidden_size", 1152}}}};
}

json relative(const char* type, const char* name) {
  return {{"architectures", {name}}, {"model_type", type},        {"hidden_size", 1024},
          {"num_hidden_layers", 8},  {"num_attention_heads", 16}, {"intermediate_size", 3072},
          {"vocab_size", 1000}};
}

void refused(const char* key, const json& value, std::initializer_list<const char*> parts,
             Code code = Code::kInvalidArgument) {
  json config = small_qwen4();
  config[key] = value;
  CAPTURE(std::string(key) + ": " + value.dump());
  const auto result = read(config);
  check_error(result, code, {"config.json"});
  check_error(result, code, parts);
}

void check_released(const ModelConfig& c) {
  CHECK(c.architecture == "qwen4_exp");
  CHECK(c.hidden == 2560);
  CHECK(c.layers == 48);
  CHECK(c.intermediate == 0);
  CHECK(c.max_positions == 262144);
  CHECK(c.dtype == ATLAS_BF16);
  CHECK(c.rope.theta == 1e7);
  CHECK(c.rope.rotary_dim == 64);
  CHECK(c.qk_norm);
  CHECK(c.centered_norms);
  CHECK(c.attention_gate);
  CHECK_FALSE(c.tie_embeddings);
  CHECK(c.draft_head);
  REQUIRE(c.mixers.size() == 48);
  for (size_t i = 0; i < 48; ++i) {
    CHECK(c.mixers[i] == (i % 4 == 3 ? Mixer::kSparseAttention : Mixer::kDelta));
  }
  REQUIRE(c.moe);
  CHECK(c.moe->experts == 512);
  CHECK(c.moe->experts_per_token == 10);
  CHECK(c.moe->intermediate == 640);
  CHECK(c.moe->shared_intermediate == 640);
  CHECK(c.moe->normalize_top);
  CHECK(c.moe->layers == std::vector<bool>(48, true));
  REQUIRE(c.delta);
  CHECK(c.delta->key_heads == 16);
  CHECK(c.delta->value_heads == 48);
  CHECK(c.delta->key_dim == 128);
  CHECK(c.delta->value_dim == 128);
  CHECK(c.delta->conv_kernel == 4);
  CHECK(c.delta->sigmoid_gate);
  CHECK_FALSE(c.delta->fused_projections);
  REQUIRE(c.indexer);
  CHECK(c.indexer->heads == 4);
  CHECK(c.indexer->head_dim == 128);
  CHECK(c.indexer->budget == 2048);
  CHECK(c.indexer->ratio == 4);
  REQUIRE(c.streams);
  CHECK(c.streams->count == 4);
  CHECK(c.streams->low_rank == 320);
}

}  // namespace

TEST_CASE("config: the released qwen4_exp is read, under both of its names, nested or flat") {
  const auto nested = read(released(), R"({"eos_token_id": [248046, 248044]})");
  REQUIRE_MESSAGE(nested, nested.error().to_string());
  check_released(*nested);
  CHECK(nested->eos_ids == std::vector<uint32_t>{248044, 248046});
  CHECK(nested->ngram->eos_id == 248044);
  for (const char* type : {"qwen4_exp_text", "qwen4_exp", "qwen3_8_flash_next_text"}) {
    CAPTURE(type);
    json flat = released_text();
    flat["model_type"] = type;
    const auto config = read(flat);
    REQUIRE_MESSAGE(config, config.error().to_string());
    check_released(*config);
  }
  json renamed = released();
  renamed["model_type"] = "qwen3_8_flash_next";
  renamed["architectures"] = {"Qwen3_8FlashNextForConditionalGeneration"};
  renamed["text_config"]["model_type"] = "qwen3_8_flash_next_text";
  const auto config = read(renamed);
  REQUIRE_MESSAGE(config, config.error().to_string());
  check_released(*config);
}

TEST_CASE(
    "config: the n-gram constants of the released model are derived, by default from seed 1234") {
  const auto config = read(released());
  REQUIRE_MESSAGE(config, config.error().to_string());
  const NgramConfig& ngram = *config->ngram;
  CHECK(ngram.layer == 1);
  CHECK(ngram.embed_dim == 2560);
  CHECK(ngram.conv_kernel == 4);
  CHECK(ngram.ngram_size == 3);
  CHECK(ngram.heads() == 16);
  CHECK(ngram.row_width() == 160);
  CHECK(ngram.shards == 128);
  CHECK(ngram.multipliers == std::vector<uint64_t>{23703573157769, 20109073645365, 8052911324071});
  CHECK(ngram.head_sizes == std::vector<uint64_t>{20000003, 20000023, 20000033, 20000047, 20000059,
                                                  20000063, 20000069, 20000077, 20000081, 20000093,
                                                  20000107, 20000147, 20000153, 20000159, 20000161,
                                                  20000171});
  REQUIRE(ngram.head_offsets.size() == 16);
  CHECK(ngram.head_offsets[0] == 0);
  CHECK(ngram.head_offsets[1] == 20000003);
  CHECK(ngram.head_offsets[15] == 300001275);
  CHECK(ngram.rows == 320001536);
}

TEST_CASE("config: released n-gram rows of the first tokens follow from the constants") {
  const auto config = read(released());
  REQUIRE(config);
  const NgramConfig& n = *config->ngram;
  // Tokens 248045, 846, 198 from the start of a sequence: the windows begin with end tokens.
  const auto row = [&](uint64_t t0, uint64_t t1, uint64_t t2, size_t head) {
    uint64_t mix = t0 * n.multipliers[0] ^ t1 * n.multipliers[1];
    if (head >= n.heads_per_ngram) mix ^= t2 * n.multipliers[2];
    return mix % n.head_sizes[head] + n.head_offsets[head];
  };
  CHECK(row(248045, 248044, 248044, 0) == 13981229);
  CHECK(row(248045, 248044, 248044, 15) == 312970430);
  CHECK(row(846, 248045, 248044, 7) == 159207155);
  CHECK(row(198, 846, 248045, 8) == 163775156);
  CHECK(row(198, 846, 248045, 15) == 317942745);
}

TEST_CASE("config: tiny n-gram constants are those of transformers") {
  const auto config = read(small_qwen4());
  REQUIRE_MESSAGE(config, config.error().to_string());
  const NgramConfig& ngram = *config->ngram;
  CHECK(ngram.layer == 0);
  CHECK(ngram.multipliers ==
        std::vector<uint64_t>{4295158889762567, 35454616657218897, 19285316470915801});
  CHECK(ngram.head_sizes == std::vector<uint64_t>{97, 101, 103, 107});
  CHECK(ngram.rows == 408);
  json smaller = small_qwen4();
  smaller["ngram_vocab_size_base"] = 31;
  CHECK(read(smaller)->ngram->head_sizes == std::vector<uint64_t>{31, 37, 41, 43});
  smaller["ngram_vocab_size_base"] = 2;
  CHECK(read(smaller)->ngram->head_sizes == std::vector<uint64_t>{2, 3, 5, 7});
  CHECK(read(smaller)->ngram->rows == 24);
  json other = small_qwen4();
  other["seed"] = 0;
  CHECK(read(other)->ngram->multipliers != ngram.multipliers);
}

TEST_CASE("config: layers of qwen4_exp may be spelled in several ways") {
  json config = small_qwen4();
  for (const char* name : {"full_attention", "qwen_sparse_attention", "indexed_attention"}) {
    config["layer_types"] = {"linear_attention", name};
    const auto read_back = read(config);
    REQUIRE_MESSAGE(read_back, read_back.error().to_string());
    CHECK(read_back->mixers == std::vector<Mixer>{Mixer::kDelta, Mixer::kSparseAttention});
  }
  config.erase("layer_types");
  config["full_attention_interval"] = 2;
  CHECK(read(config)->mixers == std::vector<Mixer>{Mixer::kDelta, Mixer::kSparseAttention});
  // Without n-grams, sparse layers and a draft head nothing is left of those parts.
  config["full_attention_interval"] = 2;
  config["ple_layer_ids"] = nullptr;
  config["layer_types"] = {"linear_attention", "linear_attention"};
  for (const char* key : {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim",
                          "indexer_budget", "indexer_compress_ratio", "eos_token_id"}) {
    config.erase(key);
  }
  const auto plain = read(config);
  REQUIRE_MESSAGE(plain, plain.error().to_string());
  CHECK_FALSE(plain->indexer);
  CHECK_FALSE(plain->ngram);
  CHECK_FALSE(plain->draft_head);
  CHECK_FALSE(plain->delta->sigmoid_gate);
  config["mtp_num_hidden_layers"] = 1;
  check_error(read(config), Code::kInvalidArgument, {"'indexer_n_heads' is missing"});
}

TEST_CASE("config: each rule of qwen4_exp is refused by key, with found and expected") {
  refused("hc_count", 1, {"'hc_count' is 1", "from 2"});
  refused("indexer_kv_heads", 2, {"'indexer_kv_heads' is 2", "from 1 to 1"});
  refused("indexer_budget", 18,
          {"'indexer_budget' is 18", "multiple of indexer_compress_ratio, 4"});
  refused("indexer_head_dim", 1, {"'indexer_head_dim' is 1", "at least the 2 elements"});
  refused("indexer_n_heads", nullptr, {"'indexer_n_heads' is missing"});
  refused("ple_embed_dim", 10, {"'ple_embed_dim' is 10", "multiple of the 4 n-gram heads"});
  refused("ple_layer_ids", {2}, {"layer 2", "attends", "linear_attention"});
  refused("ple_layer_ids", {0}, {"layer 0", "1 to 2, counted from one"});
  refused("ple_layer_ids", {3}, {"layer 3", "1 to 2"});
  refused("ple_layer_ids", {1, 2}, {"names 2 layers"}, Code::kUnimplemented);
  refused("ple_layer_ids", "1", {"'ple_layer_ids'"});
  refused("eos_token_id", nullptr, {"'eos_token_id' is missing", "n-gram"});
  refused("ngram_size", 5, {"'ngram_size' is 5", "from 2 to 4"});
  refused("ngram_vocab_size_base", 1, {"'ngram_vocab_size_base' is 1", "from 2"});
  refused("make_ngram_vocab_size_divisible_by", 0, {"'make_ngram_vocab_size_divisible_by' is 0"});
  refused("split_ngram_parts", 0, {"'split_ngram_parts' is 0"});
  refused("seed", -1, {"'seed' is -1"});
  refused("num_experts_per_tok", 4, {"num_experts_per_tok is 4", "the 3 experts"});
  refused("num_experts", nullptr, {"'num_experts' is missing"});
  refused("num_experts", 0, {"'num_experts' is 0"});
  refused("moe_intermediate_size", 0, {"'moe_intermediate_size' is 0"});
  refused("norm_topk_prob", 1, {"'norm_topk_prob' is 1", "true or false"});
  refused("linear_num_value_heads", 3, {"3 value heads", "2 key heads", "a multiple"});
  refused("linear_conv_kernel_dim", 0, {"'linear_conv_kernel_dim' is 0"});
  refused("output_gate_type", "relu", {"'relu'", "sigmoid and silu"}, Code::kUnimplemented);
  refused("layer_types", {"linear_attention"}, {"has 1 entries", "2 layers"});
  refused("layer_types", {"linear_attention", "sliding_attention"},
          {"layer_types[1] is 'sliding_attention'", "full_attention"}, Code::kUnimplemented);
  refused("layer_types", 7, {"'layer_types' is 7", "a list of names"});
  refused("layer_types", {1, 2}, {"'layer_types'", "a list of names"});
  refused("text_config", 7, {"'text_config' is 7", "an object"});
  refused("text_config", {{"model_type", "llama"}},
          {"text_config", "'model_type' is 'llama'", "'qwen4_exp_text'"});
  refused("architectures", {"Qwen4ExpForSequenceClassification"}, {"ForSequenceClassification"},
          Code::kUnimplemented);
  json nested = released();
  nested["text_config"]["hc_count"] = 1;
  check_error(read(nested), Code::kInvalidArgument, {"config.json: text_config", "'hc_count'"});
}

TEST_CASE("config: sections for pictures are checked and change nothing") {
  json config = small_qwen4();
  const auto plain = read(config)->rope.inverse_frequencies;
  config["rope_parameters"]["mrope_section"] = {1, 0, 0};
  config["rope_parameters"]["mrope_interleaved"] = true;
  const auto with = read(config);
  REQUIRE_MESSAGE(with, with.error().to_string());
  CHECK(with->rope.inverse_frequencies == plain);
  for (const json& wrong : {json{1, 1, 0}, json{1, 0}, json{2, -1, 0}, json("x"), json{0.5, 0, 0},
                            json{uint64_t{1} << 63, uint64_t{1} << 63, 1}}) {
    config["rope_parameters"]["mrope_section"] = wrong;
    check_error(read(config), Code::kInvalidArgument,
                {"config.json: rope_parameters", "'mrope_section'", "whose sum is 1"});
  }
  config["rope_parameters"].erase("mrope_section");
  config["rope_parameters"]["mrope_interleaved"] = 1;
  check_error(read(config), Code::kInvalidArgument, {"'mrope_interleaved' is 1"});
  config["rope_parameters"] = {{"full_attention", {{"rope_theta", 1}}}};
  check_error(read(config), Code::kUnimplemented, {"'full_attention'", "one rope for all"});
}

TEST_CASE("config: rope of qwen4_exp may be written beside rope_parameters or in the old form") {
  json config = small_qwen4();
  config.erase("rope_parameters");
  config["indexer_head_dim"] = 8;
  const auto whole = read(config);
  REQUIRE_MESSAGE(whole, whole.error().to_string());
  CHECK(whole->rope.rotary_dim == 8);
  config["partial_rotary_factor"] = 0.5;
  config["rope_theta"] = 5e6;
  config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {1, 1, 0}}};
  const auto old = read(config);
  REQUIRE_MESSAGE(old, old.error().to_string());
  CHECK(old->rope.rotary_dim == 4);
  CHECK(old->rope.theta == 5e6);
}

TEST_CASE("config: qwen3_next has defaults, fused projections and layers without experts") {
  json config = relative("qwen3_next", "Qwen3NextForCausalLM");
  const auto plain = read(config);
  REQUIRE_MESSAGE(plain, plain.error().to_string());
  CHECK(plain->architecture == "qwen3_next");
  CHECK(plain->kv_heads == 2);
  CHECK(plain->head_dim == 256);
  CHECK(plain->rope.rotary_dim == 64);
  CHECK(plain->max_positions == 32768);
  CHECK(plain->centered_norms);
  CHECK(plain->qk_norm);
  CHECK(plain->attention_gate);
  CHECK(plain->mixers[2] == Mixer::kDelta);
  CHECK(plain->mixers[3] == Mixer::kAttention);
  CHECK(plain->delta->fused_projections);
  CHECK_FALSE(plain->delta->sigmoid_gate);
  CHECK(plain->delta->value_heads == 32);
  CHECK(plain->moe->experts == 512);
  CHECK(plain->moe->experts_per_token == 10);
  CHECK(plain->moe->intermediate == 512);
  CHECK(plain->moe->shared_intermediate == 512);
  CHECK(plain->moe->normalize_top);
  CHECK(plain->intermediate == 0);
  CHECK_FALSE(plain->streams);
  CHECK_FALSE(plain->draft_head);
  config["mlp_only_layers"] = {1, 100};
  config["decoder_sparse_step"] = 2;
  const auto mixed = read(config);
  REQUIRE_MESSAGE(mixed, mixed.error().to_string());
  CHECK(mixed->moe->layers ==
        std::vector<bool>{false, false, false, true, false, true, false, true});
  CHECK(mixed->intermediate == 3072);
  config["decoder_sparse_step"] = 9;
  CHECK_FALSE(read(config)->moe);
  config["decoder_sparse_step"] = 0;
  check_error(read(config), Code::kInvalidArgument, {"'decoder_sparse_step' is 0"});
  config["decoder_sparse_step"] = 9;
  config["intermediate_size"] = 0;
  check_error(read(config), Code::kInvalidArgument, {"intermediate size is 0"});
}

TEST_CASE("config: qwen3_5 and qwen3_5_moe are read nested and flat") {
  json text = relative("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM");
  text.erase("intermediate_size");
  const auto flat = read(text);
  REQUIRE_MESSAGE(flat, flat.error().to_string());
  CHECK(flat->architecture == "qwen3_5_moe");
  CHECK(flat->moe->experts == 256);
  CHECK(flat->moe->experts_per_token == 8);
  CHECK(flat->moe->shared_intermediate == 512);
  CHECK_FALSE(flat->delta->fused_projections);
  CHECK(flat->kv_heads == 2);
  CHECK(flat->intermediate == 0);
  json dense = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                {"model_type", "qwen3_5"},
                {"tie_word_embeddings", true},
                {"dtype", "bfloat16"},
                {"text_config", relative("qwen3_5_text", "Qwen3_5ForCausalLM")}};
  const auto nested = read(dense);
  REQUIRE_MESSAGE(nested, nested.error().to_string());
  CHECK(nested->architecture == "qwen3_5");
  CHECK(nested->tie_embeddings);
  CHECK(nested->dtype == ATLAS_BF16);
  CHECK(nested->kv_heads == 4);
  CHECK(nested->intermediate == 3072);
  CHECK_FALSE(nested->moe);
  CHECK(nested->delta);
  dense["text_config"]["tie_word_embeddings"] = true;
  dense.erase("tie_word_embeddings");
  CHECK(read(dense)->tie_embeddings);
  dense["text_config"]["layer_types"] = json::array();
  check_error(read(dense), Code::kInvalidArgument, {"text_config", "0 entries"});
}

TEST_CASE("config: qwen3 and qwen3_moe have head norms, plain gains and no windows") {
  json config = relative("qwen3", "Qwen3ForCausalLM");
  const auto plain = read(config);
  REQUIRE_MESSAGE(plain, plain.error().to_string());
  CHECK(plain->architecture == "qwen3");
  CHECK(plain->head_dim == 128);
  CHECK(plain->kv_heads == 16);
  CHECK(plain->qk_norm);
  CHECK_FALSE(plain->centered_norms);
  CHECK_FALSE(plain->attention_gate);
  CHECK(plain->rope.rotary_dim == 128);
  CHECK(plain->mixers == std::vector<Mixer>(8, Mixer::kAttention));
  CHECK_FALSE(plain->delta);
  CHECK_FALSE(plain->moe);
  config["use_sliding_window"] = true;
  config["sliding_window"] = 4096;
  check_error(read(config), Code::kUnimplemented, {"use_sliding_window", "4096 of 32768"});
  config["max_window_layers"] = 8;
  CHECK(read(config));
  config["layer_types"] = std::vector<std::string>(8, "sliding_attention");
  check_error(read(config), Code::kUnimplemented, {"'sliding_attention'", "with full_attention"});

  json moe = relative("qwen3_moe", "Qwen3MoeForCausalLM");
  moe["num_key_value_heads"] = 4;
  const auto experts = read(moe);
  REQUIRE_MESSAGE(experts, experts.error().to_string());
  CHECK(experts->architecture == "qwen3_moe");
  CHECK(experts->head_dim == 64);
  CHECK(experts->moe->experts == 128);
  CHECK(experts->moe->experts_per_token == 8);
  CHECK(experts->moe->intermediate == 768);
  CHECK(experts->moe->shared_intermediate == 0);
  CHECK_FALSE(experts->moe->normalize_top);
  moe["num_local_experts"] = 60;
  CHECK(read(moe)->moe->experts == 60);
  moe["num_experts"] = 64;
  CHECK(read(moe)->moe->experts == 64);
}

TEST_CASE("config: an architecture may be known by its class alone, but not by a made-up type") {
  json config = relative("", "Qwen3MoeForCausalLM");
  config.erase("model_type");
  CHECK(read(config)->architecture == "qwen3_moe");
  config["architectures"] = {"Qwen3ForCausalLM"};
  CHECK(read(config)->architecture == "qwen3");
  config["architectures"] = {"Qwen3MoeXForCausalLM"};
  check_error(read(config), Code::kUnimplemented, {"'Qwen3MoeXForCausalLM'", "qwen4_exp"});
  for (const char* type : {"qwen3_text", "llama_text", "qwen2", "_text", "qwen4_exp_text_text"}) {
    config = relative(type, "Qwen3ForCausalLM");
    CAPTURE(type);
    check_error(read(config), Code::kUnimplemented, {type, "has no model program"});
  }
}

TEST_CASE("config: llama may have biases in attention and MLP") {
  json config = relative("llama", "LlamaForCausalLM");
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  const auto biased = read(config);
  REQUIRE_MESSAGE(biased, biased.error().to_string());
  CHECK(biased->attention_bias);
  CHECK(biased->attention_output_bias);
  CHECK(biased->mlp_bias);
  CHECK_FALSE(biased->qk_norm);
}

TEST_SUITE_END();
