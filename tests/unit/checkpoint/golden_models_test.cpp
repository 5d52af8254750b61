// Every golden checkpoint opens, with the configuration, modules and files that its tests rely on.
#include <doctest/doctest.h>

#include <filesystem>

#include "daemon/model/checkpoint/checkpoint.h"
#include "daemon/model/checkpoint/ngram_table.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;
using nlohmann::json;

TEST_SUITE_BEGIN("checkpoint");

namespace {

const std::string kFolder = ATLAS_SOURCE_DIR "/tests/golden/qwen/";

void check_module(const Checkpoint& checkpoint, const std::string& module, uint64_t rows,
                  uint64_t columns) {
  const TensorInfo* weight = checkpoint.find(module + ".weight");
  REQUIRE_MESSAGE(weight != nullptr, module);
  REQUIRE(weight->rank == 2);
  CHECK_MESSAGE(weight->dims[0] == rows, module);
  CHECK_MESSAGE(weight->dims[1] == columns, module);
}

void check_experts(const Checkpoint& checkpoint, const std::string& mlp) {
  const ModelConfig& config = checkpoint.config();
  for (uint32_t e = 0; e < config.moe->experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}", mlp, e);
    check_module(checkpoint, expert + ".gate_proj", config.moe->intermediate, config.hidden);
    check_module(checkpoint, expert + ".up_proj", config.moe->intermediate, config.hidden);
    check_module(checkpoint, expert + ".down_proj", config.hidden, config.moe->intermediate);
  }
}

void check_layers(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  for (uint32_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("{}.layers.{}", config.prefix, i);
    CAPTURE(layer);
    const bool experts = config.moe && config.moe->layers[i];
    if (experts) check_experts(checkpoint, layer + ".mlp");
    if (!experts)
      check_module(checkpoint, layer + ".mlp.up_proj", config.intermediate, config.hidden);
    if (config.mixers[i] == Mixer::kDelta) {
      CHECK(checkpoint.find(layer + ".linear_attn.A_log") != nullptr);
    } else {
      const uint64_t rows = config.heads * config.head_dim * (config.attention_gate ? 2 : 1);
      check_module(checkpoint, layer + ".self_attn.q_proj", rows, config.hidden);
      const bool bias = checkpoint.find(layer + ".self_attn.q_proj.bias") != nullptr;
      CHECK(bias == config.attention_bias);
    }
  }
}

uint64_t file_size(const std::string& path) { return std::filesystem::file_size(path); }

}  // namespace

TEST_CASE("golden models: each opens and its files have the sizes that its sequences give") {
  const json index = json::parse(read_text(kFolder + "index.json"));
  CHECK(index["models"].size() == 41);
  for (const json& model : index["models"]) {
    const auto name = model["name"].get<std::string>();
    CAPTURE(name);
    const std::string folder = kFolder + name;
    const auto checkpoint = Checkpoint::open(folder);
    REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
    const ModelConfig& config = checkpoint->config();
    CHECK(config.architecture == model["architecture"].get<std::string>());
    CHECK(config.vocab == model["vocab"].get<uint32_t>());
    CHECK(config.draft_head == model["draft"].get<bool>());
    check_module(*checkpoint, config.prefix + ".embed_tokens", config.vocab, config.hidden);
    CHECK((checkpoint->find("lm_head.weight") == nullptr) == config.tie_embeddings);
    check_layers(*checkpoint);
    if (config.draft_head) check_experts(*checkpoint, "mtp.layers.0.mlp");
    if (config.ngram) {
      const auto table = ngram_table(*checkpoint, config);
      REQUIRE_MESSAGE(table, table.error().to_string());
      CHECK((table->dtype == ATLAS_F8_E4M3) == (name == "qwen4_fp8_table"));
    }

    const json golden = json::parse(read_text(folder + "/golden.json"));
    uint64_t tokens = 0, drafts = 0;
    for (const json& ids : golden["sequences"]) {
      tokens += ids.size();
      drafts += ids.size() - 1;
      for (const json& id : ids) CHECK(id.get<uint32_t>() < config.vocab);
    }
    CHECK(file_size(folder + "/logits.f32") == tokens * config.vocab * sizeof(float));
    if (config.draft_head) {
      CHECK(file_size(folder + "/draft_logits.f32") == drafts * config.vocab * sizeof(float));
    }
  }
}

TEST_CASE("golden models: flash-mini opens as what its notice says") {
  const auto checkpoint = Checkpoint::open(ATLAS_SOURCE_DIR "/tests/data/flash-mini");
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  const ModelConfig& config = checkpoint->config();
  CHECK(config.architecture == "qwen4_exp");
  CHECK(config.layers == 8);
  CHECK(config.draft_head);
  CHECK(config.indexer->budget == 256);
  // 2 bytes each but for the 3 * 8 of multipliers and the 16 * 8 of sizes and offsets.
  CHECK(checkpoint->total_bytes() == 15103664 * 2 + 19 * 8);
  const auto table = ngram_table(*checkpoint, config);
  REQUIRE_MESSAGE(table, table.error().to_string());
  CHECK(table->shards.size() == 4);
  CHECK(table->rows == 16256);
  CHECK(checkpoint->tokenizer_source());
  CHECK(checkpoint->notes().empty());
}

TEST_SUITE_END();
