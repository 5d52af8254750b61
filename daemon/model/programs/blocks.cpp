#include "daemon/model/programs/blocks.h"

#include <cmath>

namespace atlas::model {

using plan::Groups;
using plan::RowDomain;
using plan::StepBuilder;
using plan::Value;
using plan::VectorName;
using plan::WeightName;

Value Rows::value(const std::string& name, uint64_t width) const {
  const char* prefix = domain_ == RowDomain::kRows        ? ""
                       : domain_ == RowDomain::kLogitRows ? "last "
                                                          : "draft ";
  return step_.activation(prefix + name, width, domain_);
}

VectorName norm_gain(const ModelConfig& c, const std::string& tensor, uint64_t n) {
  return {.tensor = tensor, .n = n, .plus = c.centered_norms ? 1.0f : 0.0f};
}

namespace {

VectorName rope_table(const RopeConfig& rope) {
  return {"rope.inverse_frequencies", rope.inverse_frequencies.size(), rope.inverse_frequencies};
}

void rotate(StepBuilder& step, const RopeConfig& rope, Value x, uint32_t heads, uint32_t head_dim) {
  step.add("rope", plan::RopeOp{.x = x,
                                .heads = heads,
                                .head_dim = head_dim,
                                .rotary_dim = rope.rotary_dim,
                                .interleaved = rope.interleaved,
                                .magnitude = rope.attention_scale,
                                .inverse_frequencies = rope_table(rope)});
}

/// Which blocks a query attends to: `projected` holds index queries, then the raw index key.
plan::IndexerOp indexer(StepBuilder& step, const ModelConfig& c, const Rows& rows,
                        const std::string& module, Value projected) {
  const IndexerConfig& i = *c.indexer;
  const uint64_t width = uint64_t{i.heads} * i.head_dim;
  const Value query = rows.value("index_query", width);
  step.head_norm(projected.columns(0, width), {i.heads, i.head_dim, i.head_dim},
                 norm_gain(c, module + ".q_layernorm.weight", i.head_dim), c.rms_eps, query);
  rotate(step, c.rope, query, i.heads, i.head_dim);
  return {.q = query,
          .k = projected.columns(width, i.head_dim),
          .heads = i.heads,
          .head_dim = i.head_dim,
          .budget = i.budget,
          .ratio = i.ratio,
          .k_norm = norm_gain(c, module + ".k_layernorm.weight", i.head_dim),
          .epsilon = c.rms_eps,
          .rotary_dim = c.rope.rotary_dim,
          .magnitude = c.rope.attention_scale,
          .inverse_frequencies = rope_table(c.rope)};
}

/// Queries and keys side by side, normed if the model does so, and turned by one operation.
Value turned_heads(StepBuilder& step, const ModelConfig& c, const Rows& rows,
                   const std::string& module, Value projected, Groups q_heads) {
  const uint32_t d = c.head_dim;
  const uint64_t q_width = uint64_t{c.heads} * d, kv_width = uint64_t{c.kv_heads} * d;
  const Groups k_heads{c.kv_heads, d, d};
  const Value q = projected.columns(0, projected.width - kv_width);
  const Value k = projected.columns(projected.width - kv_width, kv_width);
  // Where nothing stands between the heads and nothing is normed, they are turned in place.
  const bool in_place = !c.qk_norm && q_heads.stride == d;
  const Value turned = in_place ? projected : rows.value("turned", q_width + kv_width);
  const Value query = turned.columns(0, q_width), key = turned.columns(q_width, kv_width);
  if (c.qk_norm) {
    step.head_norm(q, q_heads, norm_gain(c, module + ".q_norm.weight", d), c.rms_eps, query);
    step.head_norm(k, k_heads, norm_gain(c, module + ".k_norm.weight", d), c.rms_eps, key);
  } else if (!in_place) {
    step.add("copy_heads", plan::CopyGroupsOp{q, query, q_heads, {c.heads, d, d}});
    step.add("copy_heads", plan::CopyGroupsOp{k, key, k_heads, k_heads});
  }
  rotate(step, c.rope, turned, c.heads + c.kv_heads, d);
  return turned;
}

/// The last product of a block.
void project(StepBuilder& step, Value x, WeightName weight, Output out) {
  if (out.add) {
    step.linear_add(x, std::move(weight), out.y);
  } else {
    step.linear(x, {std::move(weight)}, out.y);
  }
}

}  // namespace

void attention_block(StepBuilder& step, const ModelConfig& c, const Rows& rows,
                     const std::string& module, uint32_t layer, Value u, Output out) {
  const uint32_t d = c.head_dim;
  const uint64_t q_width = uint64_t{c.heads} * d, kv_width = uint64_t{c.kv_heads} * d;
  // A gated query head is followed by its gate.
  const uint32_t q_stride = c.attention_gate ? 2 * d : d;
  const uint64_t q_columns = uint64_t{c.heads} * q_stride;
  const uint64_t index_width = c.indexer ? uint64_t{c.indexer->heads + 1} * c.indexer->head_dim : 0;

  const Value projected = rows.value("projected", q_columns + 2 * kv_width + index_width);
  std::vector<WeightName> projections = {{module + ".q_proj", q_columns, c.hidden},
                                         {module + ".k_proj", kv_width, c.hidden},
                                         {module + ".v_proj", kv_width, c.hidden}};
  if (c.indexer) {
    projections.push_back({module + ".indexer.index_qk_proj", index_width, c.hidden});
  }
  step.linear(u, std::move(projections), projected);
  const Value q = projected.columns(0, q_columns);
  const Value k = projected.columns(q_columns, kv_width);
  const Value v = projected.columns(q_columns + kv_width, kv_width);
  if (c.attention_bias) {
    step.add_bias({module + ".q_proj.bias", q_columns}, q);
    step.add_bias({module + ".k_proj.bias", kv_width}, k);
    step.add_bias({module + ".v_proj.bias", kv_width}, v);
  }

  const Groups q_heads{c.heads, d, q_stride};
  const Value turned =
      turned_heads(step, c, rows, module, projected.columns(0, q_columns + kv_width), q_heads);
  const Value query = turned.columns(0, q_width), key = turned.columns(q_width, kv_width);

  const Value attended = rows.value("attended", q_width);
  plan::AttentionOp attention{.backend = c.indexer ? "qsa" : "gqa",
                              .layer = layer,
                              .q = query,
                              .k = key,
                              .v = v,
                              .out = attended,
                              .heads = c.heads,
                              .kv_heads = c.kv_heads,
                              .head_dim = d,
                              .scale = 1.0f / std::sqrt(static_cast<float>(d))};
  if (c.indexer) {
    attention.indexer = indexer(step, c, rows, module + ".indexer",
                                projected.columns(q_columns + 2 * kv_width, index_width));
  }
  step.add("attention", std::move(attention));
  if (c.attention_gate) {
    const Groups heads{c.heads, d, d};
    step.add("gate", plan::GateMulOp{.x = attended,
                                     .gate = q.columns(d, q_columns - d),
                                     .y = attended,
                                     .x_groups = heads,
                                     .gate_groups = q_heads,
                                     .y_groups = heads});
  }
  project(step, attended, {module + ".o_proj", c.hidden, q_width}, out);
  if (c.attention_output_bias) step.add_bias({module + ".o_proj.bias", c.hidden}, out.y);
}

namespace {

struct DeltaInputs {
  Value qkv, z, b, a;
};

/// qwen3_next keeps its projections interleaved: for each key head q, k, its values and gates, and
/// for each key head its b and a. They are put in the order of the other models.
DeltaInputs interleaved_projections(StepBuilder& step, const ModelConfig& c, const Rows& rows,
                                    const std::string& module, Value u, const DeltaInputs& to) {
  const DeltaConfig& g = *c.delta;
  const uint32_t repeat = g.value_heads / g.key_heads, values = repeat * g.value_dim;
  const uint32_t head = 2 * g.key_dim + 2 * values;
  const uint32_t keys = g.key_heads * g.key_dim;
  const Value qkvz = rows.value("interleaved", uint64_t{g.key_heads} * head);
  const Value ba = rows.value("interleaved_ba", 2 * uint64_t{g.value_heads});
  step.linear(u, {{module + ".in_proj_qkvz", qkvz.width, c.hidden}}, qkvz);
  step.linear(u, {{module + ".in_proj_ba", ba.width, c.hidden}}, ba);
  const auto copy = [&](Value from, uint32_t first, uint32_t stride, uint32_t width, Value y) {
    step.add("order", plan::CopyGroupsOp{from.columns(first, from.width - first),
                                         y,
                                         {g.key_heads, width, stride},
                                         {g.key_heads, width, width}});
  };
  copy(qkvz, 0, head, g.key_dim, to.qkv.columns(0, keys));
  copy(qkvz, g.key_dim, head, g.key_dim, to.qkv.columns(keys, keys));
  copy(qkvz, 2 * g.key_dim, head, values, to.qkv.columns(2 * keys, to.qkv.width - 2 * keys));
  copy(qkvz, 2 * g.key_dim + values, head, values, to.z);
  copy(ba, 0, 2 * repeat, repeat, to.b);
  copy(ba, repeat, 2 * repeat, repeat, to.a);
  return to;
}

}  // namespace

void delta_block(StepBuilder& step, const ModelConfig& c, const Rows& rows,
                 const std::string& module, uint32_t layer, Value u, Output out) {
  const DeltaConfig& g = *c.delta;
  const uint64_t keys = uint64_t{g.key_heads} * g.key_dim;
  const uint64_t values = uint64_t{g.value_heads} * g.value_dim;
  const uint64_t channels = 2 * keys + values;
  const Value all = rows.value("delta_projected", channels + values + 2 * uint64_t{g.value_heads});
  const DeltaInputs in{
      .qkv = all.columns(0, channels),
      .z = all.columns(channels, values),
      .b = all.columns(channels + values, g.value_heads),
      .a = all.columns(channels + values + g.value_heads, g.value_heads),
  };
  if (g.fused_projections) {
    interleaved_projections(step, c, rows, module, u, in);
  } else {
    step.linear(u,
                {{module + ".in_proj_qkv", channels, c.hidden},
                 {module + ".in_proj_z", values, c.hidden},
                 {module + ".in_proj_b", g.value_heads, c.hidden},
                 {module + ".in_proj_a", g.value_heads, c.hidden}},
                all);
  }
  const Value heads = rows.value("delta_heads", values);
  step.add("delta", plan::DeltaOp{.backend = "gdn",
                                  .layer = layer,
                                  .qkv = in.qkv,
                                  .b = in.b,
                                  .a = in.a,
                                  .out = heads,
                                  .key_heads = g.key_heads,
                                  .value_heads = g.value_heads,
                                  .key_dim = g.key_dim,
                                  .value_dim = g.value_dim,
                                  .conv_kernel = g.conv_kernel,
                                  .conv = {module + ".conv1d.weight", channels * g.conv_kernel},
                                  .a_log = {module + ".A_log", g.value_heads},
                                  .dt_bias = {module + ".dt_bias", g.value_heads}});
  // DeltaNet's own norm has a plain gain in every model.
  const Groups by_head{g.value_heads, g.value_dim, g.value_dim};
  step.head_norm(heads, by_head, {module + ".norm.weight", g.value_dim}, c.rms_eps, heads);
  step.add("gate", plan::GateMulOp{.x = heads,
                                   .gate = in.z,
                                   .y = heads,
                                   .x_groups = by_head,
                                   .gate_groups = by_head,
                                   .y_groups = by_head,
                                   .silu = !g.sigmoid_gate});
  project(step, heads, {module + ".out_proj", c.hidden, values}, out);
}

void mlp_block(StepBuilder& step, const ModelConfig& c, const Rows& rows, const std::string& module,
               bool experts, Value u, Output out) {
  if (experts) {
    const MoeConfig& m = *c.moe;
    const Value y = out.add ? rows.value("y", c.hidden) : out.y;
    step.add("experts", plan::MoeOp{.x = u,
                                    .y = y,
                                    .module = module,
                                    .experts = m.experts,
                                    .top = m.experts_per_token,
                                    .intermediate = m.intermediate,
                                    .shared_intermediate = m.shared_intermediate,
                                    .shared_gate = m.shared_intermediate != 0,
                                    .normalize = m.normalize_top});
    if (out.add) step.add("residual", plan::AddOp{y, out.y});
    return;
  }
  const Value gate_up = rows.value("gate_up", 2 * uint64_t{c.intermediate});
  const Value gated = rows.value("gated", c.intermediate);
  step.linear(u,
              {{module + ".gate_proj", c.intermediate, c.hidden},
               {module + ".up_proj", c.intermediate, c.hidden}},
              gate_up);
  if (c.mlp_bias) {
    step.add_bias({module + ".gate_proj.bias", c.intermediate}, gate_up.columns(0, c.intermediate));
    step.add_bias({module + ".up_proj.bias", c.intermediate},
                  gate_up.columns(c.intermediate, c.intermediate));
  }
  step.silu_mul(gate_up, gated);
  project(step, gated, {module + ".down_proj", c.hidden, c.intermediate}, out);
  if (c.mlp_bias) step.add_bias({module + ".down_proj.bias", c.hidden}, out.y);
}

}  // namespace atlas::model
