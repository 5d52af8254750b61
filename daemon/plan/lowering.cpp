// Each kind of operation becomes records: the core's own here, those of plugins by asking them.
#include "daemon/plan/lowering.h"

#include <cstddef>
#include <optional>

#include "daemon/device/abi_call.h"
#include "kernels/common/core.h"
#include "plugins/sdk/record.h"

namespace atlas::plan {

using kernels::align_up;
using kernels::StepControl;

namespace {

constexpr AtlasBufferRef kNowhere{ATLAS_NO_BUFFER, 0, 0};

/// Threads of a block for the core's row kernels; a CPU ignores it.
constexpr uint32_t kRowBlock = 256;

class StepLowering {
 public:
  StepLowering(PlanBuilder& builder, const Bucket& bucket)
      : builder_(builder), bucket_(bucket), sink_{sizeof(AtlasRecordSink), 0, this, &emit} {
    step_.bucket = bucket;
  }

  Status run() {
    ATLAS_RETURN_IF_ERROR(fetch_record());
    for (const NamedOperation& named : builder_.input().program->operations) {
      name_ = named.name;
      owner_ = "core";
      Status status =
          std::visit([this](const auto& operation) { return lower(operation); }, named.operation);
      if (!status.ok()) return status.with_context(named.name);
    }
    ATLAS_RETURN_IF_ERROR(commit_record());
    builder_.plan.steps.push_back(std::move(step_));
    return {};
  }

 private:
  static AtlasCode emit(void* context, const AtlasRecord* record, AtlasError*) {
    auto* self = static_cast<StepLowering*>(context);
    Record copy;
    copy.operation = self->name_;
    copy.owner = self->owner_;
    copy.kernel = record->kernel;
    copy.params_digest = record->params_digest;
    for (size_t i = 0; i < 3; ++i) {
      copy.grid[i] = record->grid[i];
      copy.block[i] = record->block[i];
    }
    copy.shared_bytes = record->shared_bytes;
    copy.bytes_read = record->bytes_read;
    const auto* params = static_cast<const std::byte*>(record->params);
    copy.params.assign(params, params + record->params_size);
    copy.relocations.assign(record->relocations, record->relocations + record->relocation_count);
    self->step_.records.push_back(std::move(copy));
    return ATLAS_OK;
  }

  // ---- Places ----------------------------------------------------------------------------------

  uint32_t max_rows(RowDomain domain) const {
    return domain == RowDomain::kRows ? bucket_.rows : bucket_.logit_rows;
  }
  AtlasBufferRef control() const { return {builder_.plan.control, 0, 0}; }
  AtlasBufferRef row_count(RowDomain domain) const {
    return {builder_.plan.control, 0,
            domain == RowDomain::kRows ? offsetof(StepControl, row_count)
                                       : offsetof(StepControl, logit_count)};
  }
  BufferId activation_buffer(const Value& value) {
    const Activation& activation = builder_.input().program->activations[value.activation];
    const uint64_t rows = max_rows(activation.domain);
    return builder_.buffer("activation " + activation.name, LedgerLine::kWorkspace,
                           align_up(rows * activation.width * sizeof(float), 256));
  }
  AtlasBufferRef at(const Value& value) {
    return {activation_buffer(value), 0, value.first * sizeof(float)};
  }
  void written(const Value& value) { ++versions_[value.activation]; }

  template <typename Params>
  Status submit(const sdk::Launch<Params>& launch) {
    return abi::call(name_, &StepLowering::emit_launch<Params>, &launch, &sink_);
  }
  template <typename Params>
  static AtlasCode emit_launch(const sdk::Launch<Params>* launch, const AtlasRecordSink* sink,
                               AtlasError* error) {
    return launch->emit(sink, error);
  }
  Status fetch_record() {
    name_ = "fetch";
    owner_ = "core";
    sdk::Launch<kernels::ControlFetchParams> launch("control_fetch",
                                                    kernels::kControlFetchParamsDigest);
    launch.point(&launch.params.control, control());
    launch.params.max_rows = bucket_.rows;
    launch.params.max_logit_rows = bucket_.logit_rows;
    launch.block(kRowBlock);
    return submit(launch);
  }
  Status commit_record() {
    name_ = "commit";
    owner_ = "core";
    sdk::Launch<kernels::ControlCommitParams> launch("control_commit",
                                                     kernels::kControlCommitParamsDigest);
    launch.point(&launch.params.control, control());
    launch.block(kRowBlock);
    return submit(launch);
  }

  // ---- Products --------------------------------------------------------------------------------

  Status lower(const EmbedOp& op) {
    ATLAS_ASSIGN_OR_RETURN(const auto placed, builder_.place({op.weight}));
    const Weight& weight = builder_.plan.weights[placed.front().weight];
    AtlasGatherProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = bucket_.rows;
    problem.platform = builder_.plan.platform.c_str();
    problem.format = weight.format.c_str();
    problem.n = weight.n;
    problem.k = weight.k;
    if (weight.k != op.y.width) {
      return invalid_argument("rows of '{}' have {} elements, and {} are expected",
                              op.weight.module, weight.k, op.y.width);
    }
    problem.id_stride = sizeof(kernels::RowInput);
    problem.ids = {builder_.plan.rows, 0, offsetof(kernels::RowInput, token)};
    problem.y = at(op.y);
    problem.y_stride = op.y.stride;
    problem.weight = {weight.buffer, 0, 0};
    problem.row_count = row_count(RowDomain::kRows);
    owner_ = weight.plugin;
    written(op.y);
    return abi::call(fmt::format("plugin '{}', gather", weight.plugin),
                     builder_.quant(weight.plugin).api->plan_gather, &problem, &sink_);
  }

  Status lower(const LinearOp& op) {
    ATLAS_ASSIGN_OR_RETURN(const auto placed, builder_.place(op.weights));
    uint64_t n = 0;
    for (const PlacedWeight& one : placed) {
      const Weight& weight = builder_.plan.weights[one.weight];
      if (weight.k != op.x.width) {
        return invalid_argument("weight '{}' takes {} inputs, and its input has {}",
                                weight.parts.front().module, weight.k, op.x.width);
      }
      n += weight.n;
    }
    if (n != op.y.width) {
      return invalid_argument(
          "weight '{}' and those beside it give {} outputs, and {} are expected",
          op.weights.front().module, n, op.y.width);
    }
    for (const PlacedWeight& one : placed) {
      ATLAS_RETURN_IF_ERROR(product(op, builder_.plan.weights[one.weight], one.y_first));
    }
    written(op.y);
    return {};
  }

  Status product(const LinearOp& op, const Weight& weight, uint64_t y_first) {
    const QuantBackend& backend = builder_.quant(weight.plugin);
    const std::string context = fmt::format("plugin '{}', product", weight.plugin);
    const Value y = op.y.columns(y_first, weight.n);
    AtlasLinearProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = max_rows(op.x.domain);
    problem.platform = builder_.plan.platform.c_str();
    problem.format = weight.format.c_str();
    problem.n = weight.n;
    problem.k = weight.k;
    problem.y_stride = y.stride;
    problem.x_stride = op.x.stride;
    problem.epilogue = op.add ? ATLAS_EPILOGUE_ADD : ATLAS_EPILOGUE_NONE;
    problem.x = at(op.x);
    problem.y = at(y);
    problem.weight = {weight.buffer, 0, 0};
    problem.row_count = row_count(op.x.domain);
    problem.workspace = kNowhere;

    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    ATLAS_RETURN_IF_ERROR(abi::call(context, backend.api->linear_needs, &problem, &needs));
    if (needs.workspace_bytes != 0) problem.workspace = workspace(needs.workspace_bytes);
    if (needs.input_encoding[0] != '\0') {
      ATLAS_RETURN_IF_ERROR(encode(op.x, weight, needs, problem.x));
    }
    owner_ = weight.plugin;
    if (!op.add || (needs.fused_epilogues & (1u << ATLAS_EPILOGUE_ADD)) != 0) {
      return abi::call(context, backend.api->plan_linear, &problem, &sink_);
    }
    // The plugin cannot add: its product goes to a buffer of its own, and the core adds that.
    problem.epilogue = ATLAS_EPILOGUE_NONE;
    problem.y_stride = weight.n;
    problem.y = {builder_.buffer("product", LedgerLine::kWorkspace,
                                 align_up(problem.max_rows * weight.n * sizeof(float), 256)),
                 0, 0};
    ATLAS_RETURN_IF_ERROR(abi::call(context, backend.api->plan_linear, &problem, &sink_));
    owner_ = "core";
    sdk::Launch<kernels::AddParams> launch("add", kernels::kAddParamsDigest);
    launch.point(&launch.params.x, problem.y);
    launch.point(&launch.params.y, at(y));
    launch.point(&launch.params.row_count, problem.row_count);
    launch.params.x_stride = weight.n;
    launch.params.y_stride = y.stride;
    launch.params.n = static_cast<uint32_t>(weight.n);
    launch.grid(problem.max_rows);
    launch.block(kRowBlock);
    return submit(launch);
  }

  /// Plans the encoding of `x` unless the step holds it already; `encoded` is where it lies.
  Status encode(const Value& x, const Weight& weight, const AtlasLinearNeeds& needs,
                AtlasBufferRef& encoded) {
    const std::string encoding = needs.input_encoding;
    const BufferId buffer =
        builder_.buffer("encoded " + encoding, LedgerLine::kWorkspace,
                        align_up(max_rows(x.domain) * needs.encoded_row_bytes, 256));
    const Encoded wanted{x.activation, x.first, x.width, versions_[x.activation]};
    std::optional<Encoded>& held = encoded_[encoding];
    const AtlasBufferRef source = encoded;
    encoded = {buffer, 0, 0};
    if (held == wanted) return {};
    held = wanted;
    AtlasEncodeProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = max_rows(x.domain);
    problem.platform = builder_.plan.platform.c_str();
    problem.encoding = needs.input_encoding;
    problem.k = x.width;
    problem.x = source;
    problem.x_stride = x.stride;
    problem.out = encoded;
    problem.row_count = row_count(x.domain);
    owner_ = weight.plugin;
    return abi::call(fmt::format("plugin '{}', encode", weight.plugin),
                     builder_.quant(weight.plugin).api->plan_encode, &problem, &sink_);
  }

  AtlasBufferRef workspace(uint64_t bytes) {
    return {builder_.buffer("workspace", LedgerLine::kWorkspace, align_up(bytes, 256)), 0, 0};
  }

  // ---- Attention -------------------------------------------------------------------------------

  Status lower(const AttentionOp& op) {
    ATLAS_ASSIGN_OR_RETURN(const AttentionBackend* backend, builder_.attention(op.backend));
    const std::string context = fmt::format("plugin '{}', attention", op.backend);
    const Plan& plan = builder_.plan;
    AtlasAttentionProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = bucket_.rows;
    problem.platform = plan.platform.c_str();
    problem.backend = op.backend.c_str();
    problem.heads = op.heads;
    problem.kv_heads = op.kv_heads;
    problem.head_dim = op.head_dim;
    problem.max_sequences = plan.limits.max_sequences;
    problem.scale = op.scale;
    problem.max_pages = plan.limits.max_pages;
    problem.q_stride = op.q.stride;
    problem.k_stride = op.k.stride;
    problem.v_stride = op.v.stride;
    problem.out_stride = op.out.stride;
    problem.q = at(op.q);
    problem.k = at(op.k);
    problem.v = at(op.v);
    problem.out = at(op.out);
    problem.control = control();
    problem.page_stride = plan.page_bytes;
    problem.workspace = kNowhere;
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    ATLAS_RETURN_IF_ERROR(abi::call(context, backend->api->needs, &problem, &needs));
    problem.pages = {plan.pages, 0, page_offset_};
    page_offset_ += align_up(needs.bytes_per_page, 64);
    if (needs.workspace_bytes != 0) problem.workspace = workspace(needs.workspace_bytes);
    owner_ = op.backend;
    written(op.out);
    return abi::call(context, backend->api->plan, &problem, &sink_);
  }

  // ---- Rows ------------------------------------------------------------------------------------

  Status lower(const RmsNormOp& op) {
    ATLAS_ASSIGN_OR_RETURN(const BufferId weight, builder_.vector(op.weight));
    sdk::Launch<kernels::RmsNormParams> launch("rms_norm", kernels::kRmsNormParamsDigest);
    launch.point(&launch.params.x, at(op.x));
    launch.point(&launch.params.weight, {weight, 0, 0});
    launch.point(&launch.params.y, at(op.y));
    launch.params.n = static_cast<uint32_t>(op.x.width);
    launch.params.epsilon = op.epsilon;
    return row_record(launch, op.x, op.y);
  }

  Status lower(const SiluMulOp& op) {
    if (op.x.width != 2 * op.y.width) {
      return internal_error("silu_mul of {} columns into {}", op.x.width, op.y.width);
    }
    sdk::Launch<kernels::SiluMulParams> launch("silu_mul", kernels::kSiluMulParamsDigest);
    launch.point(&launch.params.x, at(op.x));
    launch.point(&launch.params.y, at(op.y));
    launch.params.n = static_cast<uint32_t>(op.y.width);
    return row_record(launch, op.x, op.y);
  }

  /// A record of one task a row that reads x and writes y.
  template <typename Params>
  Status row_record(sdk::Launch<Params>& launch, const Value& x, const Value& y) {
    launch.point(&launch.params.row_count, row_count(x.domain));
    launch.params.x_stride = x.stride;
    launch.params.y_stride = y.stride;
    launch.grid(max_rows(x.domain));
    launch.block(kRowBlock);
    written(y);
    return submit(launch);
  }

  Status lower(const AddBiasOp& op) {
    ATLAS_ASSIGN_OR_RETURN(const BufferId bias, builder_.vector(op.bias));
    sdk::Launch<kernels::AddBiasParams> launch("add_bias", kernels::kAddBiasParamsDigest);
    launch.point(&launch.params.bias, {bias, 0, 0});
    launch.point(&launch.params.y, at(op.y));
    launch.point(&launch.params.row_count, row_count(op.y.domain));
    launch.params.y_stride = op.y.stride;
    launch.params.n = static_cast<uint32_t>(op.y.width);
    launch.grid(max_rows(op.y.domain));
    launch.block(kRowBlock);
    written(op.y);
    return submit(launch);
  }

  Status lower(const RopeOp& op) {
    ATLAS_ASSIGN_OR_RETURN(const BufferId table, builder_.vector(op.inverse_frequencies));
    sdk::Launch<kernels::RopeParams> launch("rope", kernels::kRopeParamsDigest);
    launch.point(&launch.params.x, at(op.x));
    launch.point(&launch.params.inverse_frequency, {table, 0, 0});
    launch.point(&launch.params.control, control());
    launch.params.x_stride = op.x.stride;
    launch.params.heads = op.heads;
    launch.params.head_dim = op.head_dim;
    launch.params.rotary_dim = op.rotary_dim;
    launch.params.interleaved = op.interleaved ? 1 : 0;
    launch.params.magnitude = op.magnitude;
    launch.grid(bucket_.rows);
    launch.block(kRowBlock);
    written(op.x);
    return submit(launch);
  }

  Status lower(const SelectLogitRowsOp& op) {
    sdk::Launch<kernels::SelectLogitRowsParams> launch("select_logit_rows",
                                                       kernels::kSelectLogitRowsParamsDigest);
    launch.point(&launch.params.x, at(op.x));
    launch.point(&launch.params.y, at(op.y));
    launch.point(&launch.params.control, control());
    launch.params.x_stride = op.x.stride;
    launch.params.y_stride = op.y.stride;
    launch.params.n = static_cast<uint32_t>(op.x.width);
    launch.grid(bucket_.logit_rows);
    launch.block(kRowBlock);
    written(op.y);
    return submit(launch);
  }

  Status lower(const SampleOp& op) {
    const kernels::ControlLimits& limits = builder_.plan.limits;
    builder_.plan.logits = activation_buffer(op.logits);
    const BufferId scratch =
        builder_.buffer("sample scratch", LedgerLine::kWorkspace,
                        uint64_t{limits.max_sequences} * limits.vocab * sizeof(float));
    sdk::Launch<kernels::SampleParams> sample("sample", kernels::kSampleParamsDigest);
    sample.point(&sample.params.control, control());
    sample.point(&sample.params.logits, at(op.logits));
    sample.point(&sample.params.scratch, {scratch, 0, 0});
    sample.grid(limits.max_sequences);
    sample.block(kRowBlock);
    ATLAS_RETURN_IF_ERROR(submit(sample));
    name_ = "score";
    sdk::Launch<kernels::ScoreParams> score("score", kernels::kScoreParamsDigest);
    score.point(&score.params.control, control());
    score.point(&score.params.logits, at(op.logits));
    score.grid(bucket_.logit_rows);
    score.block(kRowBlock);
    return submit(score);
  }

  /// What an encoded buffer holds: which columns of which activation, as of which write.
  struct Encoded {
    uint32_t activation = 0;
    uint64_t first = 0, width = 0;
    uint64_t version = 0;
    bool operator==(const Encoded&) const = default;
  };

  PlanBuilder& builder_;
  Bucket bucket_;
  AtlasRecordSink sink_;
  StepPlan step_;
  std::string name_, owner_;
  uint64_t page_offset_ = 0;
  std::map<uint32_t, uint64_t> versions_;
  std::map<std::string, std::optional<Encoded>> encoded_;
};

}  // namespace

Status lower_step(PlanBuilder& builder, const Bucket& bucket) {
  return StepLowering(builder, bucket).run();
}

}  // namespace atlas::plan
