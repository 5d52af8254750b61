#include "daemon/model/programs/llama.h"

#include <cmath>

namespace atlas::model {

using plan::RowDomain;
using plan::StepBuilder;
using plan::Value;

namespace {

/// Every activation of a step, with its columns. Rows are the step's, or those that get logits.
struct Activations {
  Value residual;     // [m, hidden]
  Value normed;       // [m, hidden]: input of a block
  Value qkv;          // [m, (heads + 2 kv_heads) * head_dim]: queries, keys, values
  Value attended;     // [m, heads * head_dim]
  Value gate_up;      // [m, 2 * intermediate]: gate, then up
  Value gated;        // [m, intermediate]
  Value last;         // [l, hidden]: residual of the rows that get logits
  Value last_normed;  // [l, hidden]
  Value logits;       // [l, vocab]
};

Activations declare(StepBuilder& step, const ModelConfig& c) {
  const uint64_t d = c.head_dim;
  return {
      .residual = step.activation("residual", c.hidden),
      .normed = step.activation("normed", c.hidden),
      .qkv = step.activation("qkv", (c.heads + 2 * c.kv_heads) * d),
      .attended = step.activation("attended", c.heads * d),
      .gate_up = step.activation("gate_up", 2 * uint64_t{c.intermediate}),
      .gated = step.activation("gated", c.intermediate),
      .last = step.activation("last", c.hidden, RowDomain::kLogitRows),
      .last_normed = step.activation("last_normed", c.hidden, RowDomain::kLogitRows),
      .logits = step.activation("logits", c.vocab, RowDomain::kLogitRows),
  };
}

void attention_block(StepBuilder& step, const ModelConfig& c, const Activations& a,
                     uint32_t layer) {
  const std::string module = fmt::format("model.layers.{}.self_attn", layer);
  const uint64_t d = c.head_dim;
  const uint64_t q_width = c.heads * d;
  const uint64_t kv_width = c.kv_heads * d;
  const Value q = a.qkv.columns(0, q_width);
  const Value k = a.qkv.columns(q_width, kv_width);
  const Value v = a.qkv.columns(q_width + kv_width, kv_width);

  step.rms_norm(a.residual,
                {fmt::format("model.layers.{}.input_layernorm.weight", layer), c.hidden}, c.rms_eps,
                a.normed);
  step.linear(a.normed,
              {{module + ".q_proj", q_width, c.hidden},
               {module + ".k_proj", kv_width, c.hidden},
               {module + ".v_proj", kv_width, c.hidden}},
              a.qkv);
  if (c.attention_bias) {
    step.add_bias({module + ".q_proj.bias", q_width}, q);
    step.add_bias({module + ".k_proj.bias", kv_width}, k);
    step.add_bias({module + ".v_proj.bias", kv_width}, v);
  }
  // Queries and keys stand side by side, so one operation turns both.
  step.add("rope", plan::RopeOp{.x = a.qkv.columns(0, q_width + kv_width),
                                .heads = c.heads + c.kv_heads,
                                .head_dim = c.head_dim,
                                .rotary_dim = c.rope.rotary_dim,
                                .interleaved = c.rope.interleaved,
                                .magnitude = c.rope.attention_scale,
                                .inverse_frequencies = {"rope.inverse_frequencies",
                                                        c.rope.inverse_frequencies.size(),
                                                        c.rope.inverse_frequencies}});
  step.add("attention",
           plan::AttentionOp{.backend = "gqa",
                             .layer = layer,
                             .q = q,
                             .k = k,
                             .v = v,
                             .out = a.attended,
                             .heads = c.heads,
                             .kv_heads = c.kv_heads,
                             .head_dim = c.head_dim,
                             .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))});
  step.linear_add(a.attended, {module + ".o_proj", c.hidden, q_width}, a.residual);
  if (c.attention_output_bias) step.add_bias({module + ".o_proj.bias", c.hidden}, a.residual);
}

void mlp_block(StepBuilder& step, const ModelConfig& c, const Activations& a, uint32_t layer) {
  const std::string module = fmt::format("model.layers.{}.mlp", layer);
  step.rms_norm(a.residual,
                {fmt::format("model.layers.{}.post_attention_layernorm.weight", layer), c.hidden},
                c.rms_eps, a.normed);
  step.linear(a.normed,
              {{module + ".gate_proj", c.intermediate, c.hidden},
               {module + ".up_proj", c.intermediate, c.hidden}},
              a.gate_up);
  if (c.mlp_bias) {
    step.add_bias({module + ".gate_proj.bias", c.intermediate},
                  a.gate_up.columns(0, c.intermediate));
    step.add_bias({module + ".up_proj.bias", c.intermediate},
                  a.gate_up.columns(c.intermediate, c.intermediate));
  }
  step.silu_mul(a.gate_up, a.gated);
  step.linear_add(a.gated, {module + ".down_proj", c.hidden, c.intermediate}, a.residual);
  if (c.mlp_bias) step.add_bias({module + ".down_proj.bias", c.hidden}, a.residual);
}

}  // namespace

plan::StepProgram llama_program(const ModelConfig& c, uint32_t) {
  StepBuilder step;
  const Activations a = declare(step, c);
  step.embed({"model.embed_tokens", c.vocab, c.hidden}, a.residual);
  for (uint32_t layer = 0; layer < c.layers; ++layer) {
    step.scope(fmt::format("layers.{}.attention", layer));
    attention_block(step, c, a, layer);
    step.scope(fmt::format("layers.{}.mlp", layer));
    mlp_block(step, c, a, layer);
  }
  step.scope("head");
  step.select_rows(a.residual, a.last);
  step.rms_norm(a.last, {"model.norm.weight", c.hidden}, c.rms_eps, a.last_normed);
  step.linear(a.last_normed,
              {{c.tie_embeddings ? "model.embed_tokens" : "lm_head", c.vocab, c.hidden}}, a.logits);
  step.sample(a.logits);
  return std::move(step).take();
}

}  // namespace atlas::model
