// quantization_config and hf_quant_config.json in the words of the tools that write them.
#include "daemon/model/checkpoint/quantization_config.h"

#include <doctest/doctest.h>

#include "tests/unit/checkpoint/safetensors_folder.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;
using nlohmann::json;

TEST_SUITE_BEGIN("checkpoint");

namespace {

plan::DeclaredFormats read(const json& config) {
  auto declared = read_quantization_config(config, "config.json");
  REQUIRE_MESSAGE(declared, declared.error().message());
  return *declared;
}

/// What is said about a module: "nvfp4 (NVFP4)", "- (X)" for a format that is not known here.
std::string said(const plan::DeclaredFormats& declared, const std::string& module) {
  const plan::DeclarationIndex index(std::span(&declared, 1));
  const auto found = index.find(module);
  if (!found) return "";
  const auto& formats = found->entry ? declared.modules[*found->entry].formats : declared.formats;
  return (formats.empty() ? "-" : formats.front()) + " (" + found->word + ")";
}

std::vector<std::string> unknown_words(const plan::DeclaredFormats& declared) {
  std::vector<std::string> words;
  for (const plan::UnknownWord& unknown : declared.unknown) words.push_back(unknown.word);
  return words;
}

}  // namespace

TEST_CASE("quantization config: exl3 and fp8 with the modules that were left out") {
  const auto exl3 = read({{"quant_method", "exl3"}, {"bits", 3.05}, {"head_bits", 5}});
  CHECK(exl3.source == "config.json: quantization_config");
  CHECK(said(exl3, "model.layers.0.mlp.up_proj") == "exl3 (exl3)");
  const auto fp8 =
      read({{"quant_method", "fp8"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", {"lm_head", "model.layers.3.self_attn", "gate"}}});
  CHECK(said(fp8, "model.layers.0.mlp.up_proj") == "fp8 (fp8)");
  CHECK(said(fp8, "lm_head") == "bf16 (modules_to_not_convert)");
  CHECK(said(fp8, "model.layers.3.self_attn.q_proj") == "bf16 (modules_to_not_convert)");
  CHECK(said(fp8, "model.layers.30.self_attn.q_proj") == "fp8 (fp8)");
  CHECK(said(fp8, "model.layers.1.mlp.gate") == "bf16 (modules_to_not_convert)");
  CHECK(said(fp8, "model.layers.1.mlp.gate_proj") == "fp8 (fp8)");
}

TEST_CASE("quantization config: Model Optimizer's layers go before its exceptions") {
  const auto plain = read({{"quant_method", "modelopt"},
                           {"quant_algo", "W4A16_NVFP4"},
                           {"ignore", {"lm_head", "mtp*", "*self_attn*"}}});
  CHECK(said(plain, "model.language_model.layers.0.mlp.experts.7.up_proj") ==
        "nvfp4 (W4A16_NVFP4)");
  CHECK(said(plain, "mtp.layers.0.mlp.experts.7.up_proj") == "bf16 (ignore)");
  CHECK(said(plain, "model.layers.0.self_attn.q_proj") == "bf16 (ignore)");
  const auto mixed =
      read({{"quant_method", "modelopt"},
            {"quant_algo", "MIXED_PRECISION"},
            {"ignore", {"mtp*"}},
            {"quantized_layers",
             {{"model.layers.0.mlp.experts", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
              {"mtp.layers.0.mlp.experts", {{"quant_algo", "FP8_PB_WO"}}},
              {"model.layers.0.self_attn", {{"quant_algo", "W4A16_AWQ"}}}}}});
  CHECK(said(mixed, "model.layers.0.mlp.experts.3.up_proj") == "nvfp4 (NVFP4)");
  CHECK(said(mixed, "mtp.layers.0.mlp.experts.3.up_proj") == "fp8 (FP8_PB_WO)");
  CHECK(said(mixed, "mtp.fc_hidden") == "bf16 (ignore)");
  CHECK(said(mixed, "model.layers.0.self_attn.q_proj") == "- (W4A16_AWQ)");
  CHECK(said(mixed, "lm_head") == "");
  CHECK(unknown_words(mixed) == std::vector<std::string>{"W4A16_AWQ"});
  CHECK(plain.unknown.empty());
}

TEST_CASE("quantization config: Model Optimizer's own file is joined to config.json") {
  const json own = {{"producer", {{"name", "modelopt"}}},
                    {"quantization",
                     {{"quant_algo", "MIXED_PRECISION"},
                      {"exclude_modules", {"lm_head"}},
                      {"quantized_layers",
                       {{"mtp.layers.0.mlp.experts", {{"quant_algo", "FP8_BLOCK_SCALES"}}}}}}}};
  auto both = read({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"mtp*"}}});
  REQUIRE(add_modelopt_config(own.dump(), "hf_quant_config.json", &both).ok());
  CHECK(both.source == "config.json: quantization_config");
  CHECK(said(both, "mtp.layers.0.mlp.experts.3.up_proj") == "fp8 (FP8_BLOCK_SCALES)");
  CHECK(said(both, "mtp.fc_hidden") == "bf16 (ignore)");
  CHECK(said(both, "lm_head") == "bf16 (exclude_modules)");
  CHECK(said(both, "model.layers.0.mlp.up_proj") == "nvfp4 (NVFP4)");
  CHECK(both.unknown.empty());
  const json odd = {{"quantization", {{"quant_algo", "FP7"}, {"exclude_modules", {"lm_head"}}}}};
  REQUIRE(add_modelopt_config(odd.dump(), "hf_quant_config.json", &both).ok());
  REQUIRE(unknown_words(both) == std::vector<std::string>{"FP7"});
  CHECK(unknown_format_note(both.unknown[0]).find("hf_quant_config.json: quantization has 'FP7'") ==
        0);
  plan::DeclaredFormats alone;
  REQUIRE(add_modelopt_config(own.dump(), "hf_quant_config.json", &alone).ok());
  CHECK(alone.source == "hf_quant_config.json: quantization");
  CHECK(said(alone, "lm_head") == "bf16 (exclude_modules)");
}

TEST_CASE("quantization config: compressed-tensors' groups, and expressions that are patterns") {
  const auto one =
      read({{"quant_method", "compressed-tensors"},
            {"format", "nvfp4-pack-quantized"},
            {"ignore",
             {"lm_head", "re:.*mlp.gate$", R"(re:^model\.visual.*)", "re:model.layers.(1|2).*"}}});
  CHECK(said(one, "model.layers.1.mlp.up_proj") == "nvfp4 (nvfp4-pack-quantized)");
  CHECK(said(one, "model.layers.1.mlp.gate") == "bf16 (ignore)");
  CHECK(said(one, "model.layers.1.mlp.gate_proj") == "nvfp4 (nvfp4-pack-quantized)");
  CHECK(one.modules.size() == 4);  // lm_head anywhere too; the last is no pattern
  const auto mixed = read({{"quant_method", "compressed-tensors"},
                           {"format", "mixed-precision"},
                           {"config_groups",
                            {{"group_0", {{"format", "nvfp4-pack-quantized"}}},
                             {"group_1", {{"format", "float-quantized"}}}}}});
  CHECK(mixed.formats == std::vector<std::string>{"nvfp4", "fp8"});
  const auto unknown = read({{"quant_method", "compressed-tensors"},
                             {"format", "mixed-precision"},
                             {"config_groups",
                              {{"group_0", {{"format", "nvfp4-pack-quantized"}}},
                               {"group_1", {{"format", "pack-quantized"}}}}}});
  CHECK(unknown.empty());
  CHECK(unknown_words(unknown) == std::vector<std::string>{"pack-quantized"});
  CHECK(mixed.unknown.empty());
}

TEST_CASE("quantization config: values of wrong types are errors with file and key") {
  const auto refused = [](const json& config, std::initializer_list<const char*> parts) {
    const auto declared = read_quantization_config(config, "config.json");
    check_error(declared, Code::kInvalidArgument, parts);
  };
  refused({{"quant_method", 4}}, {"config.json: quantization_config", "quant_method", "4"});
  refused({{"quant_method", "fp8"}, {"modules_to_not_convert", "lm_head"}},
          {"modules_to_not_convert", "a list of names"});
  refused({{"quant_method", "modelopt"}, {"ignore", {1}}}, {"ignore", "a list of names"});
  refused({{"quant_method", "modelopt"}, {"quantized_layers", {1}}}, {"quantized_layers"});
  refused({{"quant_method", "modelopt"}, {"quantized_layers", {{"a", 1}}}},
          {"quantized_layers: a", "an object"});
  refused({{"quant_method", "modelopt"}, {"quantized_layers", {{"a", {{"quant_algo", 1}}}}}},
          {"quantized_layers: a", "quant_algo"});
  refused({{"quant_method", "compressed-tensors"}, {"config_groups", {{"g", 1}}}},
          {"config_groups: g", "an object"});
  plan::DeclaredFormats declared;
  const Status status =
      add_modelopt_config(R"({"quantization": []})", "hf_quant_config.json", &declared);
  CHECK(status.message().find("hf_quant_config.json: key 'quantization'") != std::string::npos);
}

TEST_CASE("quantization config: a folder's checkpoint has it, and says when it is not compared") {
  const auto opened = [](const json& quantization) {
    const TempDir dir;
    testing::write_tiny_llama_folder({}, dir.path());
    json config = json::parse(read_text(dir.file("config.json")));
    config["quantization_config"] = quantization;
    write_text(dir.file("config.json"), config.dump());
    return Checkpoint::open(dir.path());
  };
  const auto exl3 = opened({{"quant_method", "exl3"}});
  REQUIRE_MESSAGE(exl3, exl3.error().message());
  REQUIRE(exl3->config().declared_formats);
  CHECK(exl3->config().declared_formats->formats == std::vector<std::string>{"exl3"});
  CHECK(exl3->notes().empty());
  const auto gptq = opened({{"quant_method", "gptq"}});
  REQUIRE_MESSAGE(gptq, gptq.error().message());
  REQUIRE(gptq->notes().size() == 1);
  CHECK(gptq->notes()[0].find("quantization_config says 'gptq', which is not compared") !=
        std::string::npos);
  const auto slip = opened({{"quant_method", "modelopt"}, {"quant_algo", "NVF4"}});
  REQUIRE_MESSAGE(slip, slip.error().message());
  REQUIRE(slip->notes().size() == 1);
  CHECK(slip->notes()[0].find("quantization_config has 'NVF4', which is not known here (is 'NVFP4' "
                              "meant?): ") != std::string::npos);
  const auto other = opened({{"quant_method", "modelopt"}, {"quant_algo", "W4A16_AWQ"}});
  REQUIRE(other->notes().size() == 1);
  CHECK(other->notes()[0].find("'W4A16_AWQ', which is not known here: ") != std::string::npos);
  CHECK(opened({{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}})->notes().size() ==
        1);  // it says nothing that could be compared
  check_error(opened(json::array()), Code::kInvalidArgument,
              {"config.json", "quantization_config", "an object"});
  CHECK_FALSE(opened(nullptr)->config().declared_formats);
}

TEST_SUITE_END();
