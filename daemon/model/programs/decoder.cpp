#include "daemon/model/programs/decoder.h"

#include "daemon/model/programs/blocks.h"

namespace atlas::model {

using plan::RowDomain;
using plan::StepBuilder;
using plan::Value;

plan::StepProgram decoder_program(const ModelConfig& c, uint32_t) {
  StepBuilder step;
  const Rows rows(step, RowDomain::kRows), last_rows(step, RowDomain::kLogitRows);
  const Value residual = rows.value("residual", c.hidden);
  const Value u = rows.value("u", c.hidden);
  const Output to_residual{residual, true};

  step.embed({c.prefix + ".embed_tokens", c.vocab, c.hidden}, residual);
  for (uint32_t layer = 0; layer < c.layers; ++layer) {
    const std::string module = fmt::format("{}.layers.{}", c.prefix, layer);
    step.scope(fmt::format("layers.{}.mixer", layer));
    step.rms_norm(residual, norm_gain(c, module + ".input_layernorm.weight", c.hidden), c.rms_eps,
                  u);
    if (c.mixers[layer] == Mixer::kDelta) {
      delta_block(step, c, rows, module + ".linear_attn", layer, u, to_residual);
    } else {
      attention_block(step, c, rows, module + ".self_attn", layer, u, to_residual);
    }
    step.scope(fmt::format("layers.{}.mlp", layer));
    step.rms_norm(residual, norm_gain(c, module + ".post_attention_layernorm.weight", c.hidden),
                  c.rms_eps, u);
    mlp_block(step, c, rows, module + ".mlp", c.moe && c.moe->layers[layer], u, to_residual);
  }

  step.scope("head");
  const Value last = last_rows.value("residual", c.hidden), normed = last_rows.value("u", c.hidden);
  const Value logits = last_rows.value("logits", c.vocab);
  step.select_rows(residual, last);
  step.rms_norm(last, norm_gain(c, c.prefix + ".norm.weight", c.hidden), c.rms_eps, normed);
  step.linear(normed,
              {{c.tie_embeddings ? c.prefix + ".embed_tokens" : "lm_head", c.vocab, c.hidden}},
              logits);
  step.sample(logits);
  return std::move(step).take();
}

}  // namespace atlas::model
