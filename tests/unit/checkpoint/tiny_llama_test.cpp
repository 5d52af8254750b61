// The tiny checkpoints that other tests are built on: both formats open and hold one model.
#include "tests/support/tiny_llama.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "daemon/model/checkpoint/checkpoint.h"
#include "daemon/model/checkpoint/dtype.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using atlas::testing::data_of;
using atlas::testing::TempDir;
using atlas::testing::TinyLlama;

TEST_SUITE_BEGIN("checkpoint");

namespace {
Result<Checkpoint> open_folder(const TinyLlama& model, const TempDir& folder) {
  testing::write_tiny_llama_folder(model, folder.path());
  return Checkpoint::open(folder.path());
}
Result<Checkpoint> open_gguf(const TinyLlama& model, const TempDir& folder) {
  testing::write_tiny_llama_gguf(model, folder.file("tiny.gguf"));
  return Checkpoint::open(folder.file("tiny.gguf"));
}
void check_config(const TinyLlama& model, const ModelConfig& config) {
  CHECK(config.architecture == "llama");
  CHECK(config.hidden == model.hidden);
  CHECK(config.layers == model.layers);
  CHECK(config.heads == model.heads);
  CHECK(config.kv_heads == model.kv_heads);
  CHECK(config.head_dim == model.head_dim);
  CHECK(config.intermediate == model.intermediate);
  CHECK(config.vocab == model.vocab);
  CHECK(config.max_positions == model.max_positions);
  CHECK(config.rms_eps == model.rms_eps);
  CHECK(config.tie_embeddings == model.tie_embeddings);
  CHECK(config.attention_bias == model.attention_bias);
  CHECK(config.attention_output_bias == model.attention_bias);
  CHECK(config.mlp_bias == model.mlp_bias);
  CHECK(config.rope.theta == model.rope_theta);
  CHECK(config.rope.rotary_dim == model.head_dim);
  CHECK(config.rope.inverse_frequencies.size() == model.head_dim / 2);
  CHECK(config.bos_id == 1u);
  CHECK(config.eos_ids == std::vector<uint32_t>{0, 2});
}
}  // namespace

TEST_CASE("tiny llama: a folder and a GGUF file have one config and the same tensor names") {
  for (const bool plain : {true, false}) {
    CAPTURE(plain);
    TinyLlama model;
    model.tie_embeddings = plain;
    model.attention_bias = model.mlp_bias = !plain;
    const TempDir a, b;
    auto folder = open_folder(model, a);
    auto gguf = open_gguf(model, b);
    REQUIRE_MESSAGE(folder, folder.error().to_string());
    REQUIRE_MESSAGE(gguf, gguf.error().to_string());
    check_config(model, folder->config());
    check_config(model, gguf->config());
    CHECK_FALSE(folder->config().rope.interleaved);
    CHECK(gguf->config().rope.interleaved);
    REQUIRE(folder->tensors().size() == gguf->tensors().size());
    for (size_t i = 0; i < folder->tensors().size(); ++i) {
      CHECK(folder->tensors()[i].name == gguf->tensors()[i].name);
      CHECK(std::ranges::equal(folder->tensors()[i].shape(), gguf->tensors()[i].shape()));
    }
    CHECK(folder->notes().empty());
    CHECK(gguf->notes().empty());
  }
}

TEST_CASE("tiny llama: shards hold the same bytes as one file") {
  TinyLlama model;
  const TempDir a, b;
  auto one = open_folder(model, a);
  model.shards = 3;
  auto three = open_folder(model, b);
  REQUIRE_MESSAGE(one, one.error().to_string());
  REQUIRE_MESSAGE(three, three.error().to_string());
  CHECK(three->files().size() == 3);
  CHECK(one->total_bytes() == three->total_bytes());
  REQUIRE(one->tensors().size() == three->tensors().size());
  for (const TensorInfo& tensor : one->tensors()) {
    const TensorInfo* other = three->find(tensor.name);
    REQUIRE(other != nullptr);
    CHECK(data_of(*one, tensor) == data_of(*three, *other));
  }
}

TEST_CASE("tiny llama: every GGUF type is written with the size that the reader expects") {
  for (const AtlasDType dtype :
       {ATLAS_F32, ATLAS_F16, ATLAS_BF16, ATLAS_Q4_0, ATLAS_Q4_1, ATLAS_Q5_0, ATLAS_Q5_1,
        ATLAS_Q8_0, ATLAS_Q4_K, ATLAS_Q5_K, ATLAS_Q6_K}) {
    CAPTURE(dtype_name(dtype));
    TinyLlama model;
    model.hidden = model.intermediate = 256;
    model.head_dim = 64;
    model.layers = 1;
    model.dtype = dtype;
    const TempDir folder;
    auto checkpoint = open_gguf(model, folder);
    REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
    CHECK(checkpoint->find("model.layers.0.mlp.up_proj.weight")->dtype == dtype);
    CHECK(checkpoint->find("model.embed_tokens.weight")->dtype == ATLAS_BF16);
  }
}

TEST_SUITE_END();
