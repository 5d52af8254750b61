// Names of formats and modules, and which declaration decides about a module.
#include "daemon/plan/declared_formats.h"

#include <doctest/doctest.h>

using namespace atlas::plan;

TEST_SUITE_BEGIN("plan");

TEST_CASE("declared formats: a format is what its name begins with, at an underscore") {
  CHECK(format_is("exl3_k4_mul1", "exl3"));
  CHECK(format_is("exl3_k4_mul1", "exl3_k4"));
  CHECK(format_is("fp8_b128", "fp8"));
  CHECK(format_is("nvfp4", "nvfp4"));
  CHECK_FALSE(format_is("exl3_k4_mul1", "exl3_k"));
  CHECK_FALSE(format_is("mxfp8", "fp8"));
  CHECK_FALSE(format_is("fp8", "fp8_b128"));
  CHECK_FALSE(format_is("bf16", "f16"));
}

TEST_CASE("declared formats: a pattern names a module, one around it, or any with stars") {
  const char* up = "model.language_model.layers.10.mlp.up_proj";
  for (const char* pattern :
       {"model.language_model.layers.10.mlp.up_proj", "model.layers.10.mlp.up_proj", "layers.10",
        "model.layers.*.up_proj", "*mlp*", "*", "layers.1?.mlp", "*.10", "model.layers.*"}) {
    CHECK_MESSAGE(matches_module(pattern, up), pattern);
  }
  for (const char* pattern : {"", "layers.1", "layers.10.mlp.up", "up_proj", "*.1", "lm_head",
                              "layers.10.mlp.up_proj.weight", "layers.?.mlp", "*up_pro"}) {
    CHECK_FALSE_MESSAGE(matches_module(pattern, up), pattern);
  }
  // Many stars against a name that never fits cost a walk for each, not one for each place of each.
  const std::string name(20000, 'a');
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += "*a";
  CHECK_FALSE(matches_module(pattern + "b", name));
}

TEST_CASE("declared formats: the first that says something decides, by its first entry") {
  DeclaredFormats user, config;
  user.modules = {{"layers.3", "fp8", {"fp8"}}};
  config.word = "NVFP4";
  config.formats = {"nvfp4"};
  config.modules = {{"layers.1.mlp.up_proj", "MXFP8", {"mxfp8"}},
                    {"*.mlp.*", "ignore", kFloatFormats},
                    {"layers.2.mlp.up_proj", "FP8", {"fp8"}},
                    {"layers.4", "NEW", {}}};
  const std::vector<DeclaredFormats> all = {user, config};
  const DeclarationIndex index(all);
  const auto entry = [&](const char* module) { return index.find(module)->entry; };
  CHECK(index.find("model.layers.3.mlp.up_proj")->source == &all[0]);
  CHECK(entry("model.layers.1.mlp.up_proj") == 0);
  CHECK(entry("model.layers.1.mlp.down_proj") == 1);
  CHECK(entry("model.layers.2.mlp.up_proj") == 1);  // stands before its own name
  CHECK(entry("model.layers.4.self_attn.q_proj") == 3);
  CHECK(entry("lm_head") == std::nullopt);
  CHECK(index.find("lm_head")->allows("nvfp4"));
  CHECK(index.find("lm_head")->allows("f16"));
  CHECK_FALSE(index.find("lm_head")->allows("fp8"));
  CHECK(index.find("layers.2.mlp.up_proj")->allows("bf16"));
  CHECK_FALSE(index.find("layers.2.mlp.up_proj")->allows("nvfp4"));
  CHECK(index.find("layers.4")->allows("anything"));
  CHECK_FALSE(DeclarationIndex({}).find("lm_head"));
}

TEST_SUITE_END();
