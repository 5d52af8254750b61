// Checkpoints whose weights are mixed, contradict their config or the settings, or are damaged:
// each goes from files through the planner and the loader, and an error names the tensor and the
// way out.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/small_moe.h"
#include "tools/common/local_model.h"

using namespace atlas;
using namespace atlas::testing;
using nlohmann::json;
using test::Fp8Kind;
using tools::LocalModel;

TEST_SUITE_BEGIN("parity: formats");

namespace {

const std::string kUp1 = SmallMoe::expert(1, "up_proj");
const std::string kQuery = "model.layers.0.self_attn.q_proj";

Result<std::unique_ptr<LocalModel>> open(const SmallMoe& model,
                                         const settings::FormatSettings& formats = {},
                                         const std::string& modelopt = "") {
  const TempDir dir;
  model.write(dir);
  if (!modelopt.empty()) write_text(dir.file("hf_quant_config.json"), modelopt);
  settings::Settings settings = small_settings(dir.path(), test_platforms()[0].settings);
  settings.model.formats = formats;
  return LocalModel::open(settings, 16);
}

/// The error of opening, or "".
std::string error_of(const SmallMoe& model, const settings::FormatSettings& formats = {},
                     const std::string& modelopt = "") {
  const auto opened = open(model, formats, modelopt);
  return opened ? "" : opened.error().message();
}

void check_names(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    CHECK_MESSAGE(message.find(part) != std::string::npos,
                  "'" << message << "' lacks '" << part << "'");
  }
}

/// All experts in one format.
SmallMoe with_experts(const std::function<void(SmallMoe&, const std::string&)>& put) {
  SmallMoe model;
  for (uint32_t e = 0; e < SmallMoe::kExperts; ++e) {
    for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
      put(model, SmallMoe::expert(e, projection));
    }
  }
  return model;
}
SmallMoe nvfp4_experts() {
  return with_experts([](SmallMoe& m, const std::string& name) { m.nvfp4(name); });
}
SmallMoe packed_experts() {
  return with_experts([](SmallMoe& m, const std::string& name) { m.nvfp4(name, true); });
}
SmallMoe fp8_experts() {
  return with_experts([](SmallMoe& m, const std::string& name) { m.fp8(name); });
}
SmallMoe mxfp8_experts() {
  return with_experts([](SmallMoe& m, const std::string& name) { m.fp8(name, Fp8Kind::kMx); });
}
SmallMoe exl3_experts() {
  return with_experts([](SmallMoe& m, const std::string& name) { m.exl3(name); });
}

template <typename T>
void put(FileTensor& tensor, size_t element, T value) {
  std::memcpy(tensor.data.data() + element * sizeof(T), &value, sizeof(T));
}

/// A tensor of bytes that say nothing.
FileTensor blank(const std::string& dtype, std::vector<uint64_t> shape, uint64_t element_bytes) {
  uint64_t bytes = element_bytes;
  for (const uint64_t dim : shape) bytes *= dim;
  return {dtype, std::move(shape), std::string(bytes, '\0')};
}

struct Damage {
  const char* what;
  SmallMoe (*base)();
  std::function<void(FileTensors&)> edit;
  std::vector<std::string> parts;  // of the message
};

void check_all(const std::vector<Damage>& all) {
  std::map<SmallMoe (*)(), bool> good;
  for (const Damage& damage : all) {
    CAPTURE(damage.what);
    SmallMoe model = damage.base();
    if (!good[damage.base]) {
      // Without the damage it loads, so that the damage is what is refused.
      const std::string message = error_of(model);
      CHECK_MESSAGE(message.empty(), message);
      good[damage.base] = true;
    }
    damage.edit(model.tensors);
    const std::string message = error_of(model);
    REQUIRE_FALSE(message.empty());
    check_names(message, damage.parts);
  }
}

settings::FormatSettings formats_for(std::vector<std::pair<std::string, std::string>> modules) {
  settings::FormatSettings formats;
  formats.modules = std::move(modules);
  return formats;
}
settings::FormatSettings formats_for(const std::string& all) {
  settings::FormatSettings formats;
  formats.all = all;
  return formats;
}

}  // namespace

TEST_CASE("formats: one model may have another in every projection") {
  SmallMoe model;
  for (uint32_t e = 0; e < SmallMoe::kExperts; ++e) {
    model.nvfp4(SmallMoe::expert(e, "gate_proj"));
    model.fp8(SmallMoe::expert(e, "up_proj"));
    model.exl3(SmallMoe::expert(e, "down_proj"), "mcg", 4);
  }
  model.exl3("lm_head", "3inst", 6);
  model.exl3("model.embed_tokens", "mul1", 2.5);
  model.exl3(kQuery);
  model.nvfp4("model.layers.0.self_attn.k_proj", true);
  model.fp8("model.layers.0.self_attn.v_proj", Fp8Kind::kTensor);
  model.fp8("model.layers.0.self_attn.o_proj", Fp8Kind::kMx);
  const auto opened = open(model);
  REQUIRE_MESSAGE(opened, opened.error().message());
  std::map<std::string, uint32_t> formats;
  for (const plan::Weight& weight : (*opened)->generation().plan().weights) {
    ++formats[weight.format];
  }
  for (const char* format : {"nvfp4", "fp8", "fp8_b128", "mxfp8", "exl3_k4_mcg", "exl3_k6_3inst",
                             "exl3_k2.5_mul1", "exl3_k3_mul1", "bf16"}) {
    CHECK_MESSAGE(formats[format] != 0, format);
  }
}

TEST_CASE("formats: a config that the tensors contradict is an error that names both") {
  const json modelopt = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  const std::vector<std::string> way_out = {"config.json: quantization_config",
                                            "model.formats of the settings"};
  const auto check = [&](SmallMoe model, const json& config,
                         const std::vector<std::string>& parts) {
    model.config["quantization_config"] = config;
    const std::string message = error_of(model);
    CAPTURE(config.dump());
    if (parts.empty()) {
      CHECK_MESSAGE(message.empty(), message);
      return;
    }
    REQUIRE_FALSE(message.empty());
    check_names(message, parts);
    check_names(message, way_out);
  };
  const std::string gate0 = SmallMoe::expert(0, "gate_proj");
  // Agreement: the config's word, its exceptions and its own layers.
  check(nvfp4_experts(), modelopt, {});
  check(nvfp4_experts(),
        {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"*self_attn*"}}}, {});
  check(packed_experts(),
        {{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}}, {});
  check(fp8_experts(), {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}, {});
  check(exl3_experts(), {{"quant_method", "exl3"}, {"bits", 3}}, {});
  check(exl3_experts(), {{"quant_method", "someones"}}, {});
  // Another format than the config's.
  check(fp8_experts(), modelopt,
        {"'" + gate0 + "' is in format 'fp8_b128'", gate0 + ".weight_scale_inv (f32)", "'NVFP4'"});
  check(nvfp4_experts(), {{"quant_method", "exl3"}},
        {"'" + gate0 + "' is in format 'nvfp4'", gate0 + ".weight_scale_2 (f32)", "'exl3'"});
  check(exl3_experts(), {{"quant_method", "fp8"}},
        {"'" + gate0 + "' is in format 'exl3_k3_mul1'", gate0 + ".trellis (i16)", "'fp8'"});
  // Quantized in spite of a list of exceptions, and with another format than its own layer's.
  check(nvfp4_experts(),
        {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"model.layers.0.mlp"}}},
        {gate0, "'ignore' for 'model.layers.0.mlp'"});
  check(nvfp4_experts(),
        {{"quant_method", "modelopt"},
         {"quant_algo", "MIXED_PRECISION"},
         {"quantized_layers", {{"model.layers.0.mlp.experts.1", {{"quant_algo", "FP8_PB_WO"}}}}}},
        {SmallMoe::expert(1, "gate_proj"), "'FP8_PB_WO' for 'model.layers.0.mlp.experts.1'"});
  // Quantized, it says, and nothing is.
  check(SmallMoe(), {{"quant_method", "exl3"}}, {"'exl3'", "no weight of the model"});
  // Model Optimizer's own file alone.
  const std::string message = error_of(
      fp8_experts(), {}, R"({"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}})");
  check_names(message, {gate0, "hf_quant_config.json: quantization", "'NVFP4'"});
}

TEST_CASE("formats: the settings may demand one, and overrule a config that is wrong") {
  SmallMoe model = nvfp4_experts();
  CHECK(error_of(model, formats_for("nvfp4")).empty());
  CHECK(error_of(model, formats_for({{"model.layers.*.mlp.experts", "nvfp4"}, {"*", "bf16"}}))
            .empty());
  check_names(error_of(model, formats_for("exl3")), {SmallMoe::expert(0, "gate_proj"), "'nvfp4'",
                                                     "model.formats of the settings says "
                                                     "'exl3'"});
  check_names(
      error_of(model, formats_for({{"lm_head", "exl3_k6"}})),
      {"'lm_head' is in format 'bf16'", "lm_head.weight (bf16)", "'exl3_k6' for 'lm_head'"});
  check_names(error_of(model, formats_for({{"model.layers.7", "nvfp4"}})),
              {"'model.layers.7' decides about no weight"});
  check_names(error_of(SmallMoe(), formats_for("nvfp4")), {"'nvfp4'", "no weight of the model"});
  model.config["quantization_config"] = {{"quant_method", "fp8"}};
  CHECK_FALSE(error_of(model).empty());
  CHECK(error_of(model, formats_for("nvfp4")).empty());
  CHECK(error_of(model, formats_for({{"model.layers.*.mlp.experts", "nvfp4"}})).empty());
}

TEST_CASE(
    "damaged exl3: tensors that are missing, doubled or of other shapes and types are named") {
  const auto words = [](uint64_t rows, uint64_t columns, uint64_t each) {
    return blank("I16", {rows, columns, each}, 2);
  };
  check_all({
      {"no suh",
       exl3_experts,
       [](auto& t) { t.erase(kUp1 + ".suh"); },
       {kUp1 + ".trellis", ".suh", "missing"}},
      {"no svh",
       exl3_experts,
       [](auto& t) { t.erase(kUp1 + ".svh"); },
       {kUp1 + ".trellis", ".svh", "missing"}},
      {"no trellis",
       exl3_experts,
       [](auto& t) { t.erase(kUp1 + ".trellis"); },
       {kUp1, "no .trellis"}},
      {"no marker, so 3inst, which experts 0 and 2 are not",
       exl3_experts,
       [](auto& t) { t.erase(kUp1 + ".mul1"); },
       {kUp1, "exl3_k3_3inst", "exl3_k3_mul1"}},
      {"two markers",
       exl3_experts,
       [](auto& t) { t[kUp1 + ".mcg"] = t[kUp1 + ".mul1"]; },
       {kUp1, ".mcg and .mul1"}},
      {"a marker of another number",
       exl3_experts,
       [](auto& t) { put(t[kUp1 + ".mul1"], 0, uint32_t{0xff7a83e5}); },
       {kUp1 + ".mul1", "4286219237"}},
      {"two forms of scales",
       exl3_experts,
       [](auto& t) { t[kUp1 + ".su"] = blank("I16", {8}, 2); },
       {kUp1, ".suh and .su"}},
      {"scales of another size",
       exl3_experts,
       [](auto& t) { t[kUp1 + ".suh"] = blank("F16", {64}, 2); },
       {kUp1 + ".suh", "[64]", "[128]"}},
      {"scales of another type",
       exl3_experts,
       [](auto& t) { t[kUp1 + ".svh"] = blank("BF16", {256}, 2); },
       {kUp1 + ".svh", "f16 [256]"}},
      {"a trellis of another type",
       exl3_experts,
       [](auto& t) {
         t[kUp1 + ".trellis"] = blank("I32", {8, 16, 48}, 4);
       },
       {kUp1 + ".trellis", "i16"}},
      {"a trellis of two dimensions",
       exl3_experts,
       [](auto& t) {
         t[kUp1 + ".trellis"] = blank("I16", {8, 16 * 48}, 2);
       },
       {kUp1 + ".trellis", "[8, 768]"}},
      {"no bits",
       exl3_experts,
       [&](auto& t) { t[kUp1 + ".trellis"] = words(8, 16, 0); },
       {kUp1 + ".trellis", "0 words a tile"}},
      {"9 bits",
       exl3_experts,
       [&](auto& t) { t[kUp1 + ".trellis"] = words(8, 16, 144); },
       {kUp1 + ".trellis", "9.0", "1 to 8"}},
      {"4.5 bits",
       exl3_experts,
       [&](auto& t) { t[kUp1 + ".trellis"] = words(8, 16, 72); },
       {kUp1 + ".trellis", "4.5", "1.5, 2.5 and 3.5"}},
      {"3.0625 bits",
       exl3_experts,
       [&](auto& t) { t[kUp1 + ".trellis"] = words(8, 16, 49); },
       {kUp1 + ".trellis", "3.0625"}},
      {"2.5 bits of another codebook",
       exl3_experts,
       [&](auto& t) {
         t[kUp1 + ".trellis"] = words(8, 16, 40);
         t.erase(kUp1 + ".mul1");
       },
       {kUp1 + ".trellis", "2.5", "3inst"}},
      {"tiles that are no blocks of 128",
       exl3_experts,
       [&](auto& t) { t[kUp1 + ".trellis"] = words(8, 10, 48); },
       {kUp1 + ".trellis", "160 x 128", "multiples of 128"}},
      {"a block too much",
       exl3_experts,
       [&](auto& t) { t[kUp1 + ".trellis"] = words(8, 24, 48); },
       {kUp1 + ".trellis", "384 x 128", "160 x 64"}},
      {"transposed",
       exl3_experts,
       [&](auto& t) { t[kUp1 + ".trellis"] = words(16, 8, 48); },
       {kUp1 + ".trellis", "128 x 256", "160 x 64"}},
      {"scales that are infinite",
       exl3_experts,
       [](auto& t) { put(t[kUp1 + ".suh"], 77, uint16_t{0x7c00}); },
       {kUp1 + ".suh", "at 77"}},
      {"scales that are NaN, in the padding",
       exl3_experts,
       [](auto& t) { put(t[kUp1 + ".svh"], 255, uint16_t{0xfe00}); },
       {kUp1 + ".svh", "at 255"}},
      {"experts of different bits",
       exl3_experts,
       [&](auto& t) { t[kUp1 + ".trellis"] = words(8, 16, 64); },
       {kUp1, "exl3_k4_mul1", "the experts of a layer must have one"}},
      {"a plain weight beside it",
       exl3_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("BF16", {160, 64}, 2);
       },
       {kUp1 + ".weight", kUp1 + ".trellis", "another format"}},
      {"NVFP4 beside it",
       exl3_experts,
       [](auto& t) {
         SmallMoe other = nvfp4_experts();
         for (const char* name : {".weight", ".weight_scale", ".weight_scale_2"}) {
           t[kUp1 + name] = other.tensors[kUp1 + name];
         }
       },
       {kUp1 + ".weight", kUp1 + ".trellis", "another format"}},
  });
}

TEST_CASE(
    "damaged nvfp4: tensors that are missing, doubled or of other shapes and types are named") {
  check_all({
      {"no scales",
       nvfp4_experts,
       [](auto& t) { t.erase(kUp1 + ".weight_scale"); },
       {kUp1 + ".weight_scale", "is missing"}},
      {"no matrix scale",
       nvfp4_experts,
       [](auto& t) { t.erase(kUp1 + ".weight_scale_2"); },
       {kUp1 + ".weight_scale_2", "is missing"}},
      {"no scales at all",
       nvfp4_experts,
       [](auto& t) {
         t.erase(kUp1 + ".weight_scale");
         t.erase(kUp1 + ".weight_scale_2");
       },
       {"no quantization plugin reads", kUp1 + ".weight (u8)"}},
      {"no codes",
       nvfp4_experts,
       [](auto& t) { t.erase(kUp1 + ".weight"); },
       {"no quantization plugin reads", kUp1 + ".weight_scale (f8_e4m3)"}},
      {"no reciprocal",
       packed_experts,
       [](auto& t) { t.erase(kUp1 + ".weight_global_scale"); },
       {kUp1 + ".weight_global_scale", "is missing"}},
      {"codes in bf16, with scales",
       nvfp4_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("BF16", {160, 64}, 2);
       },
       {kUp1 + ".weight (bf16 [160, 64])", kUp1 + ".weight_scale", "another format"}},
      {"codes of half the columns",
       nvfp4_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("U8", {160, 16}, 1);
       },
       {kUp1 + ".weight_scale", "[160, 2]"}},
      {"codes and scales of half the columns",
       nvfp4_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("U8", {160, 16}, 1);
         t[kUp1 + ".weight_scale"] = blank("F8_E4M3", {160, 2}, 1);
       },
       {kUp1 + ".weight", "160 x 32", "160 x 64"}},
      {"an odd number of columns",
       nvfp4_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("U8", {160, 31}, 1);
       },
       {kUp1 + ".weight", "no multiple of NVFP4's 16"}},
      {"codes of one dimension",
       nvfp4_experts,
       [](auto& t) { t[kUp1 + ".weight"] = blank("U8", {160 * 32}, 1); },
       {kUp1 + ".weight", "must be a matrix"}},
      {"scales for 32",
       nvfp4_experts,
       [](auto& t) {
         t[kUp1 + ".weight_scale"] = blank("F8_E4M3", {160, 2}, 1);
       },
       {kUp1 + ".weight_scale", "f8_e4m3 [160, 4]"}},
      {"scales swizzled into another shape",
       nvfp4_experts,
       [](auto& t) {
         t[kUp1 + ".weight_scale"] = blank("F8_E4M3", {256, 4}, 1);
       },
       {kUp1 + ".weight_scale", "f8_e4m3 [160, 4]"}},
      {"scales in bytes",
       nvfp4_experts,
       [](auto& t) { t[kUp1 + ".weight_scale"].dtype = "U8"; },
       {kUp1 + ".weight_scale (u8", "f8_e4m3 [160, 4]"}},
      {"a matrix scale in bf16",
       nvfp4_experts,
       [](auto& t) { t[kUp1 + ".weight_scale_2"] = blank("BF16", {}, 2); },
       {kUp1 + ".weight_scale_2", "one f32 number"}},
      {"two matrix scales",
       nvfp4_experts,
       [](auto& t) { t[kUp1 + ".weight_scale_2"] = blank("F32", {2}, 4); },
       {kUp1 + ".weight_scale_2", "one f32 number"}},
      {"a NaN among scales",
       nvfp4_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale"], 70, uint8_t{0x7f}); },
       {kUp1 + ".weight_scale", "NaN at row 17, column 2"}},
      {"a negative scale",
       nvfp4_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale"], 639, uint8_t{0xb8}); },
       {kUp1 + ".weight_scale", "negative scale at row 159, column 3"}},
      {"a matrix scale of NaN",
       nvfp4_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale_2"], 0, std::nanf("")); },
       {kUp1 + ".weight_scale_2", "nan"}},
      {"an infinite matrix scale",
       nvfp4_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale_2"], 0, INFINITY); },
       {kUp1 + ".weight_scale_2", "inf"}},
      {"a negative matrix scale",
       nvfp4_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale_2"], 0, -0.5f); },
       {kUp1 + ".weight_scale_2", "-0.5"}},
      {"a reciprocal of 0",
       packed_experts,
       [](auto& t) { put(t[kUp1 + ".weight_global_scale"], 0, 0.0f); },
       {kUp1 + ".weight_global_scale", "is 0"}},
      {"AWQ's scales",
       nvfp4_experts,
       [](auto& t) { t[kUp1 + ".pre_quant_scale"] = blank("BF16", {64}, 2); },
       {kUp1 + ".pre_quant_scale", "not read"}},
      {"both tools' codes",
       packed_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("U8", {160, 32}, 1);
       },
       {kUp1 + ".weight_packed", kUp1 + ".weight ", "both there"}},
      {"FP8's scales beside it",
       nvfp4_experts,
       [](auto& t) {
         t[kUp1 + ".weight_scale_inv"] = blank("F32", {2, 1}, 4);
       },
       {kUp1 + ".weight_scale_inv", "another format"}},
      {"one expert in FP8",
       nvfp4_experts,
       [](auto& t) {
         const SmallMoe other = fp8_experts();
         std::erase_if(t, [](const auto& one) { return one.first.starts_with(kUp1); });
         for (const char* name : {".weight", ".weight_scale_inv"}) {
           t[kUp1 + name] = other.tensors.at(kUp1 + name);
         }
       },
       {kUp1, "'fp8_b128'", "'nvfp4'", "the experts of a layer must have one"}},
      {"one expert is not there",
       nvfp4_experts,
       [](auto& t) {
         std::erase_if(t, [](const auto& one) { return one.first.starts_with(kUp1); });
       },
       {"no tensor of module '" + kUp1 + "'"}},
  });
}

TEST_CASE("damaged fp8: tensors that are missing, doubled or of other shapes and types are named") {
  check_all({
      {"no scales",
       fp8_experts,
       [](auto& t) { t.erase(kUp1 + ".weight_scale_inv"); },
       {kUp1 + ".weight_scale", "is missing", kUp1 + ".weight (f8_e4m3"}},
      {"scales under both names",
       fp8_experts,
       [](auto& t) { t[kUp1 + ".weight_scale"] = t[kUp1 + ".weight_scale_inv"]; },
       {kUp1 + ".weight_scale ", kUp1 + ".weight_scale_inv", "both there"}},
      {"scales of another shape",
       fp8_experts,
       [](auto& t) {
         t[kUp1 + ".weight_scale_inv"] = blank("F32", {1, 2}, 4);
       },
       {kUp1 + ".weight_scale_inv", "[2, 1]"}},
      {"scales in e4m3",
       fp8_experts,
       [](auto& t) {
         t[kUp1 + ".weight_scale_inv"] = blank("F8_E4M3", {2, 1}, 1);
       },
       {kUp1 + ".weight_scale_inv", "must be f32, bf16 or f16"}},
      {"codes in e5m2",
       fp8_experts,
       [](auto& t) { t[kUp1 + ".weight"].dtype = "F8_E5M2"; },
       {"no quantization plugin reads", kUp1 + ".weight (f8_e5m2)"}},
      {"codes in bf16, with scales",
       fp8_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("BF16", {160, 64}, 2);
       },
       {kUp1 + ".weight (bf16 [160, 64])", kUp1 + ".weight_scale_inv", "another format"}},
      {"codes of another shape",
       fp8_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("F8_E4M3", {192, 64}, 1);
       },
       {kUp1 + ".weight", "192 x 64", "160 x 64"}},
      {"codes of three dimensions",
       fp8_experts,
       [](auto& t) {
         t[kUp1 + ".weight"] = blank("F8_E4M3", {1, 160, 64}, 1);
       },
       {kUp1 + ".weight", "must be a matrix"}},
      {"a NaN among codes",
       fp8_experts,
       [](auto& t) { put(t[kUp1 + ".weight"], 159 * 64 + 63, uint8_t{0x7f}); },
       {kUp1 + ".weight", "NaN in row 159"}},
      {"a scale of NaN",
       fp8_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale_inv"], 1, std::nanf("")); },
       {kUp1 + ".weight_scale_inv", "nan", "at element 1"}},
      {"an infinite scale",
       fp8_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale_inv"], 0, INFINITY); },
       {kUp1 + ".weight_scale_inv", "inf", "at element 0"}},
      {"a negative scale",
       fp8_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale_inv"], 1, -1.0f); },
       {kUp1 + ".weight_scale_inv", "-1", "at element 1"}},
      {"a scale of NaN for 32",
       mxfp8_experts,
       [](auto& t) { put(t[kUp1 + ".weight_scale"], 2 * 17 + 1, uint8_t{255}); },
       {kUp1 + ".weight_scale", "NaN at row 17, column 1"}},
      {"scales for 64",
       mxfp8_experts,
       [](auto& t) {
         t[kUp1 + ".weight_scale"] = blank("U8", {160, 1}, 1);
       },
       {kUp1 + ".weight_scale", "a scale for each 32"}},
      {"NVFP4's matrix scale beside it",
       fp8_experts,
       [](auto& t) { t[kUp1 + ".weight_scale_2"] = blank("F32", {}, 4); },
       {kUp1 + ".weight_scale_2", "another format"}},
      {"a trellis beside it",
       fp8_experts,
       [](auto& t) {
         const SmallMoe other = exl3_experts();
         for (const char* name : {".trellis", ".suh", ".svh", ".mul1"}) {
           t[kUp1 + name] = other.tensors.at(kUp1 + name);
         }
       },
       {kUp1 + ".trellis", kUp1 + ".weight", "another format"}},
  });
}

TEST_CASE("damaged files: data that is cut off, or shapes that it does not fill, name the tensor") {
  // The last tensor of the file, by name.
  const std::string last = "model.norm.weight";
  SmallMoe model = exl3_experts();
  const TempDir dir;
  model.write(dir);
  const std::string whole = read_text(dir.file("model.safetensors"));
  write_text(dir.file("model.safetensors"), whole.substr(0, whole.size() - 10));
  const settings::Settings settings = small_settings(dir.path(), test_platforms()[0].settings);
  const auto cut = LocalModel::open(settings, 16);
  REQUIRE_FALSE(cut);
  check_names(cut.error().message(), {"model.safetensors", last});
  model.tensors[kUp1 + ".trellis"].shape = {8, 16, 64};
  check_names(error_of(model), {kUp1 + ".trellis"});
}

TEST_SUITE_END();
