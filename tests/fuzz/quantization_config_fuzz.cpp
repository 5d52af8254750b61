// Any bytes as the quantization_config of a config.json and as Model Optimizer's own file, and what
// both together say about modules: looked up as found by trying every entry.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "daemon/model/checkpoint/quantization_config.h"

using namespace atlas;
using namespace atlas::model;

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "property violated: %s\n", what);
  std::abort();
}

void check(const plan::DeclaredFormats& declared) {
  const plan::DeclarationIndex index(std::span(&declared, 1));
  for (const char* module :
       {"lm_head", "model.language_model.layers.3.mlp.experts.17.up_proj",
        "model.layers.0.self_attn.q_proj", "mtp.layers.0.mlp.gate", "model.embed_tokens"}) {
    const auto found = index.find(module);
    std::optional<size_t> first;
    for (size_t i = 0; i < declared.modules.size() && !first; ++i) {
      if (plan::matches_module(declared.modules[i].pattern, module)) first = i;
    }
    require(found.has_value() == (first || !declared.formats.empty()), "something is said");
    if (!found) continue;
    require(found->entry == first, "the first entry that matches decides");
    for (const char* format : {"exl3_k3_mul1", "nvfp4", "fp8_b128", "mxfp8", "bf16"}) {
      (void)found->allows(format);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  plan::DeclaredFormats both;
  const auto tree = parse_json_object(text, "config.json");
  if (tree) {
    const auto declared = read_quantization_config(*tree, "config.json");
    if (declared) {
      require(!declared->source.empty() && !declared->remedy.empty(), "messages have their parts");
      check(*declared);
      both = *declared;
    }
  }
  if (add_modelopt_config(text, "hf_quant_config.json", &both).ok()) check(both);
  return 0;
}
