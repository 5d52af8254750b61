// What a checkpoint makes of its tensors: fused experts, names of repacks, towers that are not
// used.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "daemon/model/checkpoint/checkpoint.h"
#include "tests/unit/checkpoint/safetensors_folder.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;
using nlohmann::json;
using namespace std::string_literals;

TEST_SUITE_BEGIN("checkpoint");

namespace {

// small_qwen4() has 3 experts of 2 rows and a hidden size of 8.
FileTensors fused(const std::string& layer) {
  return {{layer + ".mlp.experts.gate_up_proj", {"BF16", {3, 4, 8}, numbered_data(96)}},
          {layer + ".mlp.experts.down_proj", {"BF16", {3, 8, 2}, numbered_data(48)}},
          {layer + ".mlp.gate.weight", {"BF16", {3, 8}, bf16_data(24, 0)}}};
}

uint16_t first_number(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  uint16_t out = 0;
  REQUIRE(checkpoint.read(tensor, 0, std::as_writable_bytes(std::span(&out, 1))).ok());
  return out;
}

json without_ngrams() {
  json config = small_qwen4();
  config.erase("ple_layer_ids");
  return config;
}

}  // namespace

TEST_CASE("fused experts: slices look like separate experts and lie where they should") {
  const TempDir dir;
  const auto checkpoint = open_folder(dir, without_ngrams(), fused("model.layers.0"));
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  CHECK(checkpoint->find("model.layers.0.mlp.experts.gate_up_proj") == nullptr);
  CHECK(checkpoint->tensors().size() == 10);
  CHECK(checkpoint->total_bytes() == 2 * (96 + 48 + 24));
  for (uint32_t expert = 0; expert < 3; ++expert) {
    const std::string module = fmt::format("model.layers.0.mlp.experts.{}", expert);
    CHECK(checkpoint->with_prefix(module).size() == 3);
    const auto gate = checkpoint->with_prefix(module + ".gate_proj");
    REQUIRE(gate.size() == 1);
    CHECK(gate[0].name == module + ".gate_proj.weight");
    CHECK(gate[0].name.data()[gate[0].name.size()] == '\0');
    CHECK(gate[0].dtype == ATLAS_BF16);
    REQUIRE(gate[0].rank == 2);
    CHECK(gate[0].dims[0] == 2);
    CHECK(gate[0].dims[1] == 8);
    CHECK(gate[0].bytes == 32);
    CHECK(first_number(*checkpoint, gate[0]) == expert * 32);
    const TensorInfo* up = checkpoint->find(module + ".up_proj.weight");
    REQUIRE(up != nullptr);
    CHECK(first_number(*checkpoint, *up) == expert * 32 + 16);
    const TensorInfo* down = checkpoint->find(module + ".down_proj.weight");
    REQUIRE(down != nullptr);
    CHECK(down->dims[0] == 8);
    CHECK(down->dims[1] == 2);
    CHECK(first_number(*checkpoint, *down) == expert * 16);
    CHECK(to_abi_tensor(*down)->rank == 2);
  }
  check_tensors(checkpoint->tensors(), std::filesystem::file_size(dir.file("model.safetensors")));
}

TEST_CASE("fused experts: of the draft head too, and separate ones stay as they are") {
  const TempDir dir;
  FileTensors tensors = fused("mtp.layers.0");
  tensors["model.layers.0.mlp.experts.0.gate_proj.weight"] = {
      "F8_E4M3", {2, 8}, std::string(16, 0)};
  tensors["model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv"] = {
      "F32", {1, 1}, bytes_of<float>({1})};
  json config = without_ngrams();
  config["mtp_num_hidden_layers"] = 1;
  const auto checkpoint = open_folder(dir, config, tensors);
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  CHECK(checkpoint->config().draft_head);
  CHECK(checkpoint->with_prefix("mtp.layers.0.mlp.experts.2.up_proj").size() == 1);
  CHECK(checkpoint->with_prefix("model.layers.0.mlp.experts.0.gate_proj").size() == 2);
}

TEST_CASE("fused experts: other shapes and types than the configuration's are refused") {
  const TempDir dir;
  const std::string gate_up = "model.layers.0.mlp.experts.gate_up_proj";
  for (const auto& shape : {std::vector<uint64_t>{3, 8, 4}, {2, 4, 12}, {4, 3, 8}, {96}, {12, 8}}) {
    FileTensors tensors = fused("model.layers.0");
    tensors[gate_up].shape = shape;
    check_error(open_folder(dir, without_ngrams(), tensors), Code::kInvalidArgument,
                {gate_up.c_str(), "model.safetensors", "expected [3, 4, 8]"});
  }
  FileTensors tensors = fused("model.layers.0");
  tensors["model.layers.0.mlp.experts.down_proj"].shape = {3, 2, 8};
  check_error(open_folder(dir, without_ngrams(), tensors), Code::kInvalidArgument,
              {"down_proj", "[3, 2, 8]", "expected [3, 8, 2]"});
  tensors = fused("model.layers.0");
  tensors[gate_up] = {"F8_E4M3", {3, 4, 8}, std::string(96, 0)};
  check_error(open_folder(dir, without_ngrams(), tensors), Code::kUnimplemented,
              {"f8_e4m3", "expert by expert"});
  // A slice must not hide a tensor that is there under the same name.
  tensors = fused("model.layers.0");
  tensors["model.layers.0.mlp.experts.1.up_proj.weight"] = {"BF16", {2, 8}, bf16_data(16, 0)};
  check_error(open_folder(dir, without_ngrams(), tensors), Code::kInvalidArgument,
              {"experts.1.up_proj.weight", "defined twice"});
}

TEST_CASE("tensors: the trunk's prefix is the one that the tensors have") {
  const TempDir dir;
  CHECK(open_folder(dir, without_ngrams(), fused("model.layers.0"))->config().prefix == "model");
  CHECK(
      open_folder(dir, without_ngrams(), fused("model.language_model.layers.0"))->config().prefix ==
      "model.language_model");
}

TEST_CASE("tensors: a vision tower is left out with one note, a draft head's prefix is dropped") {
  const TempDir dir;
  FileTensors tensors = fused("model.mtp.layers.0");
  tensors["model.visual.blocks.0.attn.qkv.weight"] = {"BF16", {2, 2}, bf16_data(4, 0)};
  tensors["visual.merger.norm.weight"] = {"BF16", {2}, bf16_data(2, 0)};
  json config = without_ngrams();
  config["mtp_num_hidden_layers"] = 1;
  const auto checkpoint = open_folder(dir, config, tensors);
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  CHECK(checkpoint->with_prefix("model.visual").empty());
  CHECK(checkpoint->with_prefix("visual").empty());
  CHECK(checkpoint->with_prefix("model.mtp").empty());
  CHECK(checkpoint->find("mtp.layers.0.mlp.gate.weight") != nullptr);
  CHECK(checkpoint->config().draft_head);
  const auto about_vision = std::ranges::count_if(checkpoint->notes(), [](const std::string& note) {
    return note.find("2 tensors of the vision tower (12 bytes)") != std::string::npos;
  });
  CHECK(about_vision == 1);
}

TEST_CASE("tensors: a draft head needs both its tensors and its key") {
  const TempDir dir;
  json config = without_ngrams();
  const auto unused = open_folder(dir, config, fused("mtp.layers.0"));
  REQUIRE(unused);
  CHECK_FALSE(unused->config().draft_head);
  CHECK(unused->notes().back().find("no draft layer") != std::string::npos);
  config["mtp_num_hidden_layers"] = 1;
  CHECK_FALSE(open_folder(dir, config, fused("model.layers.0"))->config().draft_head);
}

TEST_CASE("tensors: norms of qwen4_exp with the 1 added already are refused, near 0 they are not") {
  const TempDir dir;
  const std::string name = "model.layers.0.attn_hyper_connection.hc_norm.weight";
  FileTensors tensors;
  for (const float gain : {-0.25f, 0.0f, 0.25f, 0.5f}) {
    tensors[name] = {"BF16", {32}, bf16_data(32, gain)};
    CHECK(open_folder(dir, without_ngrams(), tensors));
  }
  for (const float gain : {0.875f, 1.25f}) {
    tensors[name] = {"BF16", {32}, bf16_data(32, gain)};
    check_error(open_folder(dir, without_ngrams(), tensors), Code::kInvalidArgument,
                {"model.safetensors", "on average", "added the 1 already"});
  }
  tensors[name] = {"F32", {2}, bytes_of<float>({1.5f, 1.0f})};
  check_error(open_folder(dir, without_ngrams(), tensors), Code::kInvalidArgument, {"1.250"});
  // The gains of the older families are not known well enough to refuse.
  json relative = {{"model_type", "qwen3_5_text"}, {"hidden_size", 8},       {"vocab_size", 16},
                   {"num_hidden_layers", 4},       {"intermediate_size", 8}, {"head_dim", 8},
                   {"num_attention_heads", 4}};
  const auto noted =
      open_folder(dir, relative,
                  {{"model.layers.0.input_layernorm.weight", {"F16", {2}, "\x00\x3c\x00\x3c"s}}});
  REQUIRE_MESSAGE(noted, noted.error().to_string());
  CHECK(noted->notes().back().find("gains of 1.000") != std::string::npos);
}

TEST_SUITE_END();
