// Operations with state: attention, Gated DeltaNet, the n-gram table and its convolution.
#include "daemon/plan/step_lowering.h"

namespace atlas::plan {

using kernels::align_up;

namespace {

void fill_common(AttentionRequest& request, const std::string& backend, const Plan& plan,
                 uint32_t max_rows) {
  request.backend = backend;
  AtlasAttentionProblem& problem = request.problem;
  problem.struct_size = sizeof(problem);
  problem.max_rows = max_rows;
  problem.platform = plan.platform.c_str();
  problem.backend = request.backend.c_str();
  problem.max_sequences = plan.limits.max_sequences;
  problem.max_pages = plan.limits.max_pages;
  problem.page_stride = plan.page_bytes;
  problem.slot_stride = plan.slot_bytes;
  problem.anchor_stride = plan.anchor_bytes;
  for (AtlasBufferRef* absent : {&problem.q, &problem.k, &problem.v, &problem.out, &problem.pages,
                                 &problem.workspace, &problem.slots, &problem.anchors}) {
    *absent = kNowhere;
  }
}

}  // namespace

std::unique_ptr<AttentionRequest> attention_request(const AttentionOp& op, const Plan& plan,
                                                    uint32_t max_rows) {
  auto request = std::make_unique<AttentionRequest>();
  fill_common(*request, op.backend, plan, max_rows);
  AtlasAttentionProblem& problem = request->problem;
  problem.heads = op.heads;
  problem.kv_heads = op.kv_heads;
  problem.head_dim = op.head_dim;
  problem.scale = op.scale;
  problem.q_stride = op.q.stride;
  problem.k_stride = op.k.stride;
  problem.v_stride = op.v.stride;
  problem.out_stride = op.out.stride;
  if (!op.indexer) return request;
  AtlasIndexer& indexer = request->indexer;
  indexer.struct_size = sizeof(indexer);
  indexer.heads = op.indexer->heads;
  indexer.head_dim = op.indexer->head_dim;
  indexer.budget = op.indexer->budget;
  indexer.ratio = op.indexer->ratio;
  indexer.rotary_dim = op.indexer->rotary_dim;
  indexer.epsilon = op.indexer->epsilon;
  indexer.magnitude = op.indexer->magnitude;
  indexer.q_stride = op.indexer->q.stride;
  indexer.k_stride = op.indexer->k.stride;
  problem.indexer = &indexer;
  return request;
}

std::unique_ptr<AttentionRequest> attention_request(const DeltaOp& op, const Plan& plan,
                                                    uint32_t max_rows) {
  auto request = std::make_unique<AttentionRequest>();
  fill_common(*request, op.backend, plan, max_rows);
  request->problem.out_stride = op.out.stride;
  AtlasDelta& delta = request->delta;
  delta.struct_size = sizeof(delta);
  delta.key_heads = op.key_heads;
  delta.value_heads = op.value_heads;
  delta.key_dim = op.key_dim;
  delta.value_dim = op.value_dim;
  delta.conv_kernel = op.conv_kernel;
  delta.qkv_stride = op.qkv.stride;
  delta.b_stride = op.b.stride;
  delta.a_stride = op.a.stride;
  request->problem.delta = &delta;
  return request;
}

Status StepLowering::lower(const AttentionOp& op) {
  const auto request = attention_request(op, builder_.plan, max_rows(op.q.domain));
  AtlasAttentionProblem& problem = request->problem;
  problem.q = at(op.q);
  problem.k = at(op.k);
  problem.v = at(op.v);
  problem.out = at(op.out);
  if (op.indexer) {
    AtlasIndexer& indexer = request->indexer;
    indexer.q = at(op.indexer->q);
    indexer.k = at(op.indexer->k);
    ATLAS_ASSIGN_OR_RETURN(indexer.k_norm, vector(op.indexer->k_norm));
    ATLAS_ASSIGN_OR_RETURN(indexer.inverse_frequencies, vector(op.indexer->inverse_frequencies));
  }
  ATLAS_RETURN_IF_ERROR(attention(*request, op.layer, op.q.domain));
  written(op.out);
  return {};
}

Result<std::unique_ptr<AttentionRequest>> StepLowering::delta_request(const DeltaOp& op) {
  auto request = attention_request(op, builder_.plan, max_rows(op.qkv.domain));
  request->problem.out = at(op.out);
  request->problem.span_rows = span_rows(op.qkv.domain);
  AtlasDelta& delta = request->delta;
  delta.qkv = at(op.qkv);
  delta.b = at(op.b);
  delta.a = at(op.a);
  ATLAS_ASSIGN_OR_RETURN(delta.conv, vector(op.conv));
  ATLAS_ASSIGN_OR_RETURN(delta.a_log, vector(op.a_log));
  ATLAS_ASSIGN_OR_RETURN(delta.dt_bias, vector(op.dt_bias));
  return request;
}

Status StepLowering::lower(const DeltaOp& op) {
  ATLAS_ASSIGN_OR_RETURN(const auto request, delta_request(op));
  ATLAS_RETURN_IF_ERROR(attention(*request, op.layer, op.qkv.domain));
  written(op.out);
  return {};
}

Result<bool> StepLowering::delta_norm_gate(const DeltaOp& op, const RmsNormOp& norm,
                                           const GateMulOp& gate) {
  const auto by_head = [&](const Groups& groups) {
    return groups.count == op.value_heads && groups.width == op.value_dim &&
           groups.stride == op.value_dim;
  };
  if (!is_norm_gate(norm, gate) || !same_columns(norm.x, op.out) || !same_columns(norm.y, op.out) ||
      norm.weight.n != op.value_dim || !by_head(norm.from) || !by_head(norm.to) ||
      !by_head(gate.gate_groups) || gate.gate.domain != op.out.domain) {
    return false;
  }
  ATLAS_ASSIGN_OR_RETURN(const auto request, delta_request(op));
  ATLAS_ASSIGN_OR_RETURN(const AtlasAttentionNeeds needs, attention_needs(*request));
  if (needs.can_norm == 0) return false;
  AtlasDelta& delta = request->delta;
  delta.norms = 1;
  delta.silu = gate.silu ? 1 : 0;
  delta.norm_epsilon = norm.epsilon;
  delta.gate_stride = gate.gate.stride;
  delta.gate = at(gate.gate);
  ATLAS_ASSIGN_OR_RETURN(delta.norm_weight, vector(norm.weight));
  ATLAS_RETURN_IF_ERROR(attention(*request, op.layer, op.qkv.domain));
  written(gate.y);
  if (needs.encoded_offset != 0 && op.value_dim % kernels::kBlockElements == 0 &&
      gate.y.width % kernels::kEncodedPad == 0) {
    can_encode(rows(gate.y), needs.encoded_offset);
  }
  return true;
}

uint32_t StepLowering::span_rows(RowDomain domain) const {
  if (domain == RowDomain::kDraftRows) return 1;
  if (domain == RowDomain::kLogitRows) return 0;
  switch (bucket_.kind) {
    case StepKind::kPrefill:
      return 0;
    case StepKind::kDecode:
      return 1;
    case StepKind::kVerify:
      break;
  }
  return kernels::kMaxVerifyRows;
}

Result<AtlasAttentionNeeds> StepLowering::attention_needs(AttentionRequest& request) {
  ATLAS_ASSIGN_OR_RETURN(const AttentionBackend* backend, builder_.attention(request.backend));
  AtlasAttentionNeeds needs{};
  needs.struct_size = sizeof(needs);
  ATLAS_RETURN_IF_ERROR(abi::call(fmt::format("plugin '{}', attention", request.backend),
                                  backend->api->needs, &request.problem, &needs));
  return needs;
}

Status StepLowering::attention(AttentionRequest& request, uint32_t layer, RowDomain domain) {
  ATLAS_ASSIGN_OR_RETURN(const AttentionBackend* backend, builder_.attention(request.backend));
  const std::string context = fmt::format("plugin '{}', attention", request.backend);
  const Plan& plan = builder_.plan;
  const LayerState& state = builder_.states.at(state_name(request.backend, layer));
  AtlasAttentionProblem& problem = request.problem;
  problem.control = control();
  problem.rows = row_set(domain);
  ATLAS_ASSIGN_OR_RETURN(const AtlasAttentionNeeds needs, attention_needs(request));
  problem.pages = {plan.pages, 0, state.page};
  if (needs.bytes_per_slot != 0) problem.slots = {plan.slot_state, 0, state.slot};
  if (needs.bytes_per_anchor != 0) problem.anchors = {plan.anchors, 0, state.anchor};
  if (needs.workspace_bytes != 0) problem.workspace = scratch("workspace", needs.workspace_bytes);
  owner_ = request.backend;
  return abi::call(context, backend->api->plan, &problem, &sink_);
}

Status StepLowering::lower(const NgramKeysOp& op) {
  Plan& plan = builder_.plan;
  if (op.ngram < 2 || op.ngram > kernels::kMaxNgram || op.heads == 0 ||
      op.heads > kernels::kMaxNgramHeads || op.heads % (op.ngram - 1) != 0) {
    return unimplemented("n-grams of {} tokens with {} heads: up to {} and {} are run", op.ngram,
                         op.heads, kernels::kMaxNgram, kernels::kMaxNgramHeads);
  }
  if (!plan.feed) {
    FeedPlan feed;
    feed.heads = op.heads;
    feed.width = static_cast<uint32_t>(op.width);
    feed.request_bytes = kernels::feed_request_bytes(plan.limits.max_rows, op.heads);
    feed.answer_bytes = kernels::feed_answer_bytes(plan.limits.max_rows, op.width);
    feed.requests =
        builder_.buffer("feed requests", LedgerLine::kPinned,
                        feed.request_bytes * plan.limits.ring_entries, ATLAS_MEMORY_PINNED);
    feed.answers =
        builder_.buffer("feed answers", LedgerLine::kPinned,
                        feed.answer_bytes * plan.limits.ring_entries, ATLAS_MEMORY_PINNED);
    plan.feed = feed;
  }
  sdk::Launch<kernels::NgramKeysParams> keys("ngram_keys", kernels::kNgramKeysParamsDigest);
  keys.point(&keys.params.control, control());
  keys.point(&keys.params.requests, {plan.feed->requests, 0, 0});
  keys.point(&keys.params.multipliers,
             {builder_.constant("ngram multipliers", op.multipliers), 0, 0});
  keys.point(&keys.params.head_sizes, {builder_.constant("ngram head sizes", op.head_sizes), 0, 0});
  keys.point(&keys.params.head_offsets,
             {builder_.constant("ngram head offsets", op.head_offsets), 0, 0});
  keys.params.request_bytes = plan.feed->request_bytes;
  keys.params.ngram = op.ngram;
  keys.params.heads = op.heads;
  keys.params.eos_id = op.eos_id;
  return submit(keys, 1);
}

Status StepLowering::lower(const NgramRowsOp& op) {
  const Plan& plan = builder_.plan;
  if (!plan.feed || plan.feed->width != op.y.width) {
    return internal_error("n-gram rows of {} floats, and {} were asked for", op.y.width,
                          plan.feed ? plan.feed->width : 0);
  }
  sdk::Launch<kernels::FeedTakeParams> take("feed_take", kernels::kFeedTakeParamsDigest);
  take.point(&take.params.control, control());
  take.point(&take.params.answers, {plan.feed->answers, 0, 0});
  take.point(&take.params.y, at(op.y));
  take.params.answer_bytes = plan.feed->answer_bytes;
  take.params.max_rows = plan.limits.max_rows;
  take.params.y_stride = op.y.stride;
  take.params.timeout_ns = builder_.input().shape.feed_timeout_ns;
  take.params.width = static_cast<uint32_t>(op.y.width);
  ATLAS_RETURN_IF_ERROR(submit(take, bucket_.rows));
  written(op.y);
  return {};
}

Status StepLowering::lower(const NgramGateOp& op) {
  sdk::Launch<kernels::NgramGateParams> launch("ngram_gate", kernels::kNgramGateParamsDigest);
  launch.point(&launch.params.key, at(op.key));
  launch.point(&launch.params.query, at(op.query));
  launch.point(&launch.params.value, at(op.value));
  launch.point(&launch.params.y, at(op.y));
  launch.params.key_stride = op.key.stride;
  launch.params.query_stride = op.query.stride;
  launch.params.value_stride = op.value.stride;
  launch.params.y_stride = op.y.stride;
  launch.params.streams = op.streams;
  launch.params.n = static_cast<uint32_t>(op.value.width);
  ATLAS_RETURN_IF_ERROR(submit_rows(launch, rows(op.y)));
  written(op.y);
  return {};
}

Status StepLowering::lower(const NgramConvOp& op) {
  if (op.taps == 0 || op.taps > kernels::kMaxConvTaps || op.dilation == 0) {
    return unimplemented("a convolution of {} taps, {} apart: from 1 to {} are run", op.taps,
                         op.dilation, kernels::kMaxConvTaps);
  }
  ATLAS_ASSIGN_OR_RETURN(const AtlasBufferRef weight, vector(op.weight));
  const Plan& plan = builder_.plan;
  const LayerState& state = builder_.states.at(state_name("ngram_conv", 0));
  sdk::Launch<kernels::NgramConvParams> launch("ngram_conv", kernels::kNgramConvParamsDigest);
  launch.point(&launch.params.in, at(op.in));
  launch.point(&launch.params.gated, at(op.gated));
  launch.point(&launch.params.weight, weight);
  launch.point(&launch.params.x, at(op.x));
  launch.point(&launch.params.rows, row_set(op.x.domain));
  launch.point(&launch.params.slots, {plan.slot_state, 0, state.slot});
  if (plan.limits.anchor_tokens != 0) {
    launch.point(&launch.params.anchors, {plan.anchors, 0, state.anchor});
  }
  launch.params.slot_stride = plan.slot_bytes;
  launch.params.anchor_stride = plan.anchor_bytes;
  launch.params.in_stride = op.in.stride;
  launch.params.gated_stride = op.gated.stride;
  launch.params.x_stride = op.x.stride;
  launch.params.channels = static_cast<uint32_t>(op.x.width);
  launch.params.taps = op.taps;
  launch.params.dilation = op.dilation;
  written(op.x);
  // A GPU's grid counts rows too; a CPU's tasks are runs of channels.
  return submit(launch, max_rows(op.x.domain),
                (launch.params.channels + kernels::kConvChannels - 1) / kernels::kConvChannels);
}

}  // namespace atlas::plan
