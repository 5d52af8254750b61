// GGUF's tensor names of llama models beside Hugging Face's.
#include "daemon/model/checkpoint/gguf.h"

namespace atlas::model {
namespace {

struct Rename {
  std::string_view gguf, huggingface;
};
constexpr Rename kModules[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr Rename kLayerModules[] = {
    {"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},   {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"},
    {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

}  // namespace

std::string huggingface_name(std::string_view gguf_name) {
  const size_t dot = gguf_name.rfind('.');
  if (dot == std::string_view::npos) return std::string(gguf_name);
  const std::string_view module = gguf_name.substr(0, dot);
  const std::string_view field = gguf_name.substr(dot);  // ".weight", ".bias"
  if (field != ".weight" && field != ".bias") return std::string(gguf_name);
  for (const Rename& entry : kModules) {
    if (module == entry.gguf) return std::string(entry.huggingface).append(field);
  }
  if (!module.starts_with("blk.")) return std::string(gguf_name);
  const std::string_view rest = module.substr(4);
  const size_t digits = rest.find('.');
  if (digits == 0 || digits == std::string_view::npos ||
      rest.substr(0, digits).find_first_not_of("0123456789") != std::string_view::npos) {
    return std::string(gguf_name);
  }
  for (const Rename& entry : kLayerModules) {
    if (rest.substr(digits + 1) == entry.gguf) {
      return fmt::format("model.layers.{}.{}{}", rest.substr(0, digits), entry.huggingface, field);
    }
  }
  return std::string(gguf_name);
}

}  // namespace atlas::model
