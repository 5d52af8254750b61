// Operations of the core on rows, and the frame of a step: fetch first, commit last.
#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/plan/step_lowering.h"

namespace atlas::plan {

using kernels::align_up;
using kernels::StepControl;

namespace {

/// Checks groups against the columns that they lie in.
Status check_groups(const char* what, const Groups& groups, const Value& value) {
  const uint64_t reach =
      groups.count == 0 ? 0 : uint64_t{groups.count - 1} * groups.stride + groups.width;
  if (groups.count == 0 || groups.width == 0 || reach > value.width) {
    return internal_error("{}: {} groups of {} columns, {} apart, in {} columns", what,
                          groups.count, groups.width, groups.stride, value.width);
  }
  return {};
}

}  // namespace

Status StepLowering::run() {
  ATLAS_RETURN_IF_ERROR(fetch_record());
  const std::vector<NamedOperation>& operations = builder_.input().program->operations;
  for (index_ = 0; index_ < operations.size(); ++index_) {
    const NamedOperation& named = operations[index_];
    name_ = named.name;
    const auto together = lower_together(std::span(operations).subspan(index_));
    if (!together) return together.error().with_context(named.name);
    if (*together != 0) {
      index_ += *together - 1;
      continue;
    }
    Status status =
        std::visit([this](const auto& operation) { return lower(operation); }, named.operation);
    if (!status.ok()) return status.with_context(named.name);
  }
  index_ = kNoOperation;
  ATLAS_RETURN_IF_ERROR(commit_record());
  builder_.plan.steps.push_back(std::move(step_));
  return {};
}

AtlasCode StepLowering::emit(void* context, const AtlasRecord* record, AtlasError*) {
  auto* self = static_cast<StepLowering*>(context);
  Record copy;
  copy.operation = self->name_;
  copy.program_index = self->index_;
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
  copy.after = std::exchange(self->after_, {});
  self->step_.records.push_back(std::move(copy));
  return ATLAS_OK;
}

// ---- Places
// --------------------------------------------------------------------------------------

uint32_t StepLowering::max_rows(RowDomain domain) const {
  switch (domain) {
    case RowDomain::kRows:
      return bucket_.rows;
    case RowDomain::kLogitRows:
      return bucket_.logit_rows;
    case RowDomain::kDraftRows:
      break;
  }
  return builder_.plan.limits.max_sequences;
}

AtlasBufferRef StepLowering::row_set(RowDomain domain) const {
  return control(domain == RowDomain::kDraftRows ? offsetof(StepControl, draft)
                                                 : offsetof(StepControl, step));
}

AtlasBufferRef StepLowering::row_count(RowDomain domain) const {
  if (domain == RowDomain::kLogitRows) return control(offsetof(StepControl, logit_count));
  AtlasBufferRef set = row_set(domain);
  set.offset += offsetof(kernels::RowSet, row_count);
  return set;
}

BufferId StepLowering::activation_buffer(const Value& value) {
  const Activation& activation = builder_.input().program->activations[value.activation];
  const uint64_t rows = max_rows(activation.domain);
  return builder_.buffer(activation_buffer_name(activation.name), LedgerLine::kWorkspace,
                         align_up(rows * activation.width * sizeof(float), 256));
}

AtlasBufferRef StepLowering::at(const Value& value) {
  return {activation_buffer(value), static_cast<uint32_t>(value.width * sizeof(float)),
          value.first * sizeof(float)};
}

StepLowering::Rows StepLowering::rows(const Value& value) {
  return {at(value),
          value.width,
          value.stride,
          row_count(value.domain),
          max_rows(value.domain),
          fmt::format("{}+{}x{}@{}", value.activation, value.first, value.width,
                      versions_[value.activation])};
}

AtlasBufferRef StepLowering::workspace(const std::string& name, uint64_t bytes) {
  return {builder_.buffer(name, LedgerLine::kWorkspace, align_up(bytes, 256)), 0, 0};
}

AtlasBufferRef StepLowering::scratch(const std::string& name, uint64_t bytes) {
  if (!branches_.open || branches_.number == 0) return workspace(name, bytes);
  return workspace(fmt::format("{} of branch {}", name, branches_.number), bytes);
}

Result<AtlasBufferRef> StepLowering::vector(const VectorName& name) {
  ATLAS_ASSIGN_OR_RETURN(const BufferId id, builder_.vector(name));
  return AtlasBufferRef{id, 0, 0};
}

Status StepLowering::fetch_record() {
  name_ = "fetch";
  sdk::Launch<kernels::ControlFetchParams> launch("control_fetch",
                                                  kernels::kControlFetchParamsDigest);
  launch.point(&launch.params.control, control());
  launch.params.max_rows = bucket_.rows;
  launch.params.max_logit_rows = bucket_.logit_rows;
  return submit(launch, 1);
}

Status StepLowering::commit_record() {
  name_ = "commit";
  sdk::Launch<kernels::ControlCommitParams> launch("control_commit",
                                                   kernels::kControlCommitParamsDigest);
  launch.point(&launch.params.control, control());
  return submit(launch, 1);
}

// ---- Branches
// ------------------------------------------------------------------------------------

void StepLowering::fork() {
  if (!beside_) return;
  ATLAS_CHECK(!branches_.open && !step_.records.empty(), "a fork in a branch, or before a step");
  branches_ = {};
  branches_.open = true;
  branches_.first = branches_.first_of_all = step_.records.size();
  branches_.before = after_;
  if (after_.empty()) branches_.before = {static_cast<uint32_t>(step_.records.size() - 1)};
}

void StepLowering::branch() {
  if (!beside_) return;
  end_branch();
  after_ = branches_.before;
  branches_.first = step_.records.size();
  ++branches_.number;
}

void StepLowering::join() {
  if (!beside_) return;
  end_branch();
  // Without a record in any branch what comes next follows what stands before the fork.
  after_ = branches_.ends.empty() ? branches_.before : branches_.ends;
  const auto first = step_.records.begin() + static_cast<ptrdiff_t>(branches_.first_of_all);
  const bool said = std::all_of(first, step_.records.end(), [](const Record& record) {
    return std::all_of(
        record.relocations.begin(), record.relocations.end(),
        [](const AtlasRelocation& one) { return one.access != ATLAS_ACCESS_UNSAID; });
  });
  if (!said) {  // a plugin's of an earlier ABI: one after the other, as they stand in the list
    for (auto record = first + 1; record < step_.records.end(); ++record) record->after.clear();
    after_.clear();
  }
  std::erase_if(makers_, [&](const auto& one) {
    return one.second.record >= branches_.first_of_all;  // may run beside who reads the encoding
  });
  branches_.open = false;
}

void StepLowering::end_branch() {
  ATLAS_CHECK(branches_.open, "a branch or a join without a fork");
  if (step_.records.size() == branches_.first) return;
  branches_.ends.push_back(static_cast<uint32_t>(step_.records.size() - 1));
}

// ---- Rows
// ----------------------------------------------------------------------------------------

template <typename Params>
Status StepLowering::fill(sdk::Launch<Params>& launch, kernels::RmsNormParams& params,
                          const RmsNormOp& op) {
  ATLAS_RETURN_IF_ERROR(check_groups("norm's input", op.from, op.x));
  ATLAS_RETURN_IF_ERROR(check_groups("norm's output", op.to, op.y));
  ATLAS_ASSIGN_OR_RETURN(const AtlasBufferRef weight, vector(op.weight));
  const bool shared = op.weight.n == op.from.width;
  if (!shared && op.weight.n != uint64_t{op.from.count} * op.from.width) {
    return internal_error("norm of {} groups of {} with a weight of {}", op.from.count,
                          op.from.width, op.weight.n);
  }
  launch.point(&params.x, at(op.x));
  launch.point(&params.weight, weight);
  launch.point(&params.y, at(op.y));
  launch.point(&params.row_count, row_count(op.x.domain));
  params.x_stride = op.x.stride;
  params.y_stride = op.y.stride;
  params.groups = op.from.count;
  params.n = op.from.width;
  params.x_group_stride = op.from.stride;
  params.y_group_stride = op.to.stride;
  params.weight_group_stride = shared ? 0 : op.from.width;
  params.epsilon = op.epsilon;
  return {};
}

Status StepLowering::lower(const RmsNormOp& op) {
  sdk::Launch<kernels::RmsNormParams> launch("rms_norm", kernels::kRmsNormParamsDigest);
  ATLAS_RETURN_IF_ERROR(fill(launch, launch.params, op));
  ATLAS_RETURN_IF_ERROR(submit(launch, max_rows(op.x.domain)));
  written(op.y);
  if (op.to.width > kernels::kNormNarrow) {
    can_encode(op.y, op.to, offsetof(kernels::RmsNormParams, encoded),
               offsetof(kernels::RmsNormParams, encoded_f16));
  }
  return {};
}

Status StepLowering::add(const Rows& x, const Rows& y) {
  sdk::Launch<kernels::AddParams> launch("add", kernels::kAddParamsDigest);
  launch.point(&launch.params.x, x.at);
  launch.point(&launch.params.y, y.at);
  launch.params.x_stride = x.stride;
  launch.params.y_stride = y.stride;
  launch.params.n = static_cast<uint32_t>(y.width);
  return submit_rows(launch, y);
}

Status StepLowering::lower(const AddOp& op) {
  if (op.x.width != op.y.width) {
    return internal_error("add of {} columns to {}", op.x.width, op.y.width);
  }
  ATLAS_RETURN_IF_ERROR(add(rows(op.x), rows(op.y)));
  written(op.y);
  return {};
}

Status StepLowering::lower(const CopyGroupsOp& op) {
  ATLAS_RETURN_IF_ERROR(check_groups("copy's input", op.from, op.x));
  ATLAS_RETURN_IF_ERROR(check_groups("copy's output", op.to, op.y));
  sdk::Launch<kernels::CopyGroupsParams> launch("copy_groups", kernels::kCopyGroupsParamsDigest);
  launch.point(&launch.params.x, at(op.x));
  launch.point(&launch.params.y, at(op.y));
  launch.params.x_stride = op.x.stride;
  launch.params.y_stride = op.y.stride;
  launch.params.groups = op.from.count;
  launch.params.n = op.from.width;
  launch.params.x_group_stride = op.from.stride;
  launch.params.y_group_stride = op.to.stride;
  ATLAS_RETURN_IF_ERROR(submit_rows(launch, rows(op.x)));
  written(op.y);
  return {};
}

template <typename Params>
Status StepLowering::fill(sdk::Launch<Params>& launch, kernels::GateMulParams& params,
                          const GateMulOp& op) {
  ATLAS_RETURN_IF_ERROR(check_groups("gate_mul's input", op.x_groups, op.x));
  ATLAS_RETURN_IF_ERROR(check_groups("gate_mul's gate", op.gate_groups, op.gate));
  ATLAS_RETURN_IF_ERROR(check_groups("gate_mul's output", op.y_groups, op.y));
  launch.point(&params.x, at(op.x));
  launch.point(&params.gate, at(op.gate));
  launch.point(&params.y, at(op.y));
  launch.point(&params.row_count, row_count(op.x.domain));
  params.x_stride = op.x.stride;
  params.gate_stride = op.gate.stride;
  params.y_stride = op.y.stride;
  params.groups = op.x_groups.count;
  params.n = op.x_groups.width;
  params.x_group_stride = op.x_groups.stride;
  params.gate_group_stride = op.gate_groups.stride;
  params.y_group_stride = op.y_groups.stride;
  params.silu = op.silu ? 1 : 0;
  return {};
}

Status StepLowering::lower(const GateMulOp& op) {
  sdk::Launch<kernels::GateMulParams> launch("gate_mul", kernels::kGateMulParamsDigest);
  ATLAS_RETURN_IF_ERROR(fill(launch, launch.params, op));
  ATLAS_RETURN_IF_ERROR(submit(launch, max_rows(op.x.domain)));
  written(op.y);
  can_encode(op.y, op.y_groups, offsetof(kernels::GateMulParams, encoded));
  return {};
}

Status StepLowering::silu_mul(const Rows& x, const Rows& y) {
  if (x.width != 2 * y.width)
    return internal_error("silu_mul of {} columns into {}", x.width, y.width);
  sdk::Launch<kernels::SiluMulParams> launch("silu_mul", kernels::kSiluMulParamsDigest);
  launch.point(&launch.params.x, x.at);
  launch.point(&launch.params.y, y.at);
  launch.params.x_stride = x.stride;
  launch.params.y_stride = y.stride;
  launch.params.n = static_cast<uint32_t>(y.width);
  ATLAS_RETURN_IF_ERROR(submit_rows(launch, x));
  can_encode(y, offsetof(kernels::SiluMulParams, encoded));
  return {};
}

Status StepLowering::lower(const SiluMulOp& op) {
  const Rows x = rows(op.x);
  written(op.y);
  return silu_mul(x, rows(op.y));
}

Status StepLowering::lower(const SiluOp& op) {
  sdk::Launch<kernels::SiluParams> launch("silu", kernels::kSiluParamsDigest);
  launch.point(&launch.params.x, at(op.x));
  launch.point(&launch.params.y, at(op.y));
  launch.params.x_stride = op.x.stride;
  launch.params.y_stride = op.y.stride;
  launch.params.n = static_cast<uint32_t>(op.x.width);
  launch.params.scale = op.scale;
  ATLAS_RETURN_IF_ERROR(submit_rows(launch, rows(op.x)));
  written(op.y);
  can_encode(rows(op.y), offsetof(kernels::SiluParams, encoded));
  return {};
}

Status StepLowering::lower(const AddBiasOp& op) {
  ATLAS_ASSIGN_OR_RETURN(const AtlasBufferRef bias, vector(op.bias));
  sdk::Launch<kernels::AddBiasParams> launch("add_bias", kernels::kAddBiasParamsDigest);
  launch.point(&launch.params.bias, bias);
  launch.point(&launch.params.y, at(op.y));
  launch.params.y_stride = op.y.stride;
  launch.params.n = static_cast<uint32_t>(op.y.width);
  ATLAS_RETURN_IF_ERROR(submit_rows(launch, rows(op.y)));
  written(op.y);
  return {};
}

Status StepLowering::lower(const RopeOp& op) {
  ATLAS_ASSIGN_OR_RETURN(const AtlasBufferRef table, vector(op.inverse_frequencies));
  sdk::Launch<kernels::RopeParams> launch("rope", kernels::kRopeParamsDigest);
  launch.point(&launch.params.x, at(op.x));
  launch.point(&launch.params.inverse_frequency, table);
  launch.point(&launch.params.rows, row_set(op.x.domain));
  launch.params.x_stride = op.x.stride;
  launch.params.heads = op.heads;
  launch.params.head_dim = op.head_dim;
  launch.params.rotary_dim = op.rotary_dim;
  launch.params.interleaved = op.interleaved ? 1 : 0;
  launch.params.magnitude = op.magnitude;
  written(op.x);
  return submit(launch, max_rows(op.x.domain));
}

Status StepLowering::lower(const SelectRowsOp& op) {
  const BufferId index =
      op.y.domain == RowDomain::kLogitRows ? builder_.plan.logit_rows : builder_.plan.draft_sources;
  sdk::Launch<kernels::SelectRowsParams> launch("select_rows", kernels::kSelectRowsParamsDigest);
  launch.point(&launch.params.x, at(op.x));
  launch.point(&launch.params.y, at(op.y));
  launch.point(&launch.params.index, {index, 0, 0});
  launch.params.x_stride = op.x.stride;
  launch.params.y_stride = op.y.stride;
  launch.params.n = static_cast<uint32_t>(op.x.width);
  ATLAS_RETURN_IF_ERROR(submit_rows(launch, rows(op.y)));
  written(op.y);
  return {};
}

Status StepLowering::lower(const StreamMixOp& op) {
  sdk::Launch<kernels::StreamMixParams> launch("stream_mix", kernels::kStreamMixParamsDigest);
  launch.point(&launch.params.gate, at(op.gate));
  launch.point(&launch.params.x, at(op.x));
  launch.point(&launch.params.u, at(op.u));
  launch.params.gate_stride = op.gate.stride;
  launch.params.x_stride = op.x.stride;
  launch.params.u_stride = op.u.stride;
  launch.params.streams = op.streams;
  launch.params.n = static_cast<uint32_t>(op.u.width);
  ATLAS_RETURN_IF_ERROR(submit_rows(launch, rows(op.x)));
  written(op.u);
  can_encode(rows(op.u), offsetof(kernels::StreamMixParams, encoded),
             offsetof(kernels::StreamMixParams, encoded_f16));
  return {};
}

Status StepLowering::lower(const StreamInjectOp& op) {
  sdk::Launch<kernels::StreamInjectParams> launch("stream_inject",
                                                  kernels::kStreamInjectParamsDigest);
  launch.point(&launch.params.c, at(op.c));
  launch.point(&launch.params.y, at(op.y));
  launch.point(&launch.params.x, at(op.x));
  launch.params.c_stride = op.c.stride;
  launch.params.y_stride = op.y.stride;
  launch.params.x_stride = op.x.stride;
  launch.params.streams = op.streams;
  launch.params.n = static_cast<uint32_t>(op.y.width);
  ATLAS_RETURN_IF_ERROR(submit_rows(launch, rows(op.x)));
  written(op.x);
  return {};
}

Result<uint32_t> StepLowering::lower_together(std::span<const NamedOperation> next) {
  if (next.size() < 2) return 0;
  if (const auto* linear = std::get_if<LinearOp>(&next[0].operation)) {
    ATLAS_ASSIGN_OR_RETURN(const bool done, linear_ending(*linear, next[1]));
    return done ? 2 : 0;
  }
  const auto* norm = std::get_if<RmsNormOp>(&next[0].operation);
  const auto* gate = std::get_if<GateMulOp>(&next[1].operation);
  if (norm != nullptr && gate != nullptr && is_norm_gate(*norm, *gate)) {
    ATLAS_RETURN_IF_ERROR(norm_gate(*norm, *gate));
    return 2;
  }
  const auto* inject = std::get_if<StreamInjectOp>(&next[0].operation);
  norm = std::get_if<RmsNormOp>(&next[1].operation);
  if (inject != nullptr && norm != nullptr && is_inject_norm(*inject, *norm)) {
    ATLAS_RETURN_IF_ERROR(inject_norm(*inject, *norm));
    return 2;
  }
  const auto* delta = std::get_if<DeltaOp>(&next[0].operation);
  if (delta == nullptr || norm == nullptr || next.size() < 3) return 0;
  gate = std::get_if<GateMulOp>(&next[2].operation);
  if (gate == nullptr) return 0;
  ATLAS_ASSIGN_OR_RETURN(const bool done, delta_norm_gate(*delta, *norm, *gate));
  return done ? 3 : 0;
}

bool StepLowering::is_norm_gate(const RmsNormOp& norm, const GateMulOp& gate) const {
  const auto same = [](const Groups& a, const Groups& b) {
    return a.count == b.count && a.width == b.width && a.stride == b.stride;
  };
  return gpu_ && norm.to.width <= kernels::kNormNarrow && same_columns(gate.x, norm.y) &&
         same_columns(gate.y, norm.y) && same(gate.x_groups, norm.to) &&
         same(gate.y_groups, norm.to);
}

Status StepLowering::norm_gate(const RmsNormOp& norm, const GateMulOp& gate) {
  sdk::Launch<kernels::NormGateParams> launch("norm_gate", kernels::kNormGateParamsDigest);
  ATLAS_RETURN_IF_ERROR(fill(launch, launch.params.norm, norm));
  ATLAS_RETURN_IF_ERROR(fill(launch, launch.params.gate, gate));
  ATLAS_RETURN_IF_ERROR(submit(launch, max_rows(norm.x.domain)));
  written(gate.y);
  const uint64_t width = gate.y.width, group = gate.y_groups.width;
  if (group % kernels::kBlockElements == 0 && width % kernels::kEncodedPad == 0 &&
      gate.y_groups.stride == group && gate.y_groups.count * group == width) {
    can_encode(rows(gate.y), offsetof(kernels::NormGateParams, gate.encoded));
  }
  return {};
}

bool StepLowering::is_inject_norm(const StreamInjectOp& inject, const RmsNormOp& norm) const {
  return gpu_ && same_columns(inject.x, norm.x) && norm.from.count == inject.streams &&
         norm.from.width == inject.y.width && norm.from.stride == norm.from.width &&
         norm.from.width <= kernels::kMaxInjectNorm;
}

Status StepLowering::inject_norm(const StreamInjectOp& inject, const RmsNormOp& norm) {
  ATLAS_RETURN_IF_ERROR(check_groups("norm's input", norm.from, norm.x));
  ATLAS_RETURN_IF_ERROR(check_groups("norm's output", norm.to, norm.y));
  ATLAS_ASSIGN_OR_RETURN(const AtlasBufferRef weight, vector(norm.weight));
  const bool shared = norm.weight.n == norm.from.width;
  if (!shared && norm.weight.n != uint64_t{norm.from.count} * norm.from.width) {
    return internal_error("norm of {} groups of {} with a weight of {}", norm.from.count,
                          norm.from.width, norm.weight.n);
  }
  const auto fill = [&](auto& launch, kernels::InjectNormParams& params) {
    launch.point(&params.c, at(inject.c));
    launch.point(&params.y, at(inject.y));
    launch.point(&params.x, at(inject.x));
    launch.point(&params.weight, weight);
    launch.point(&params.normed, at(norm.y));
    launch.point(&params.row_count, row_count(inject.x.domain));
    params.c_stride = inject.c.stride;
    params.y_stride = inject.y.stride;
    params.x_stride = inject.x.stride;
    params.normed_stride = norm.y.stride;
    params.streams = inject.streams;
    params.n = norm.from.width;
    params.weight_stream_stride = shared ? 0 : norm.from.width;
    params.normed_stream_stride = norm.to.stride;
    params.epsilon = norm.epsilon;
  };
  const uint32_t rows = max_rows(inject.x.domain);
  written(inject.x);
  written(norm.y);
  if (follows_combine(inject)) {
    const Record combine = std::move(step_.records.back());
    step_.records.pop_back();
    sdk::Launch<kernels::CombineInjectNormParams> both("combine_inject_norm",
                                                       kernels::kCombineInjectNormParamsDigest);
    std::memcpy(&both.params.combine, combine.params.data(), sizeof(both.params.combine));
    for (const AtlasRelocation& moved : combine.relocations) {
      auto* bytes = reinterpret_cast<std::byte*>(&both.params.combine) + moved.param_offset;
      both.point(reinterpret_cast<uint64_t*>(bytes), moved.target, moved.access);
    }
    fill(both, both.params.inject);
    after_ = combine.after;
    ATLAS_RETURN_IF_ERROR(submit(both, rows));
    // It belongs to the experts, whose output is there now.
    step_.records.back().operation = combine.operation;
    step_.records.back().program_index = combine.program_index;
    can_encode(norm.y, norm.to, offsetof(kernels::CombineInjectNormParams, inject.encoded),
               offsetof(kernels::CombineInjectNormParams, inject.encoded_f16));
    return {};
  }
  sdk::Launch<kernels::InjectNormParams> launch("inject_norm", kernels::kInjectNormParamsDigest);
  fill(launch, launch.params);
  ATLAS_RETURN_IF_ERROR(submit(launch, rows));
  can_encode(norm.y, norm.to, offsetof(kernels::InjectNormParams, encoded),
             offsetof(kernels::InjectNormParams, encoded_f16));
  return {};
}

bool StepLowering::follows_combine(const StreamInjectOp& inject) {
  const Record& last = step_.records.back();
  if (last.params_digest != kernels::kCombineExpertsParamsDigest ||
      inject.y.domain != inject.x.domain ||
      max_rows(inject.y.domain) > kernels::kCombineInjectRows ||
      inject.y.width > kernels::kMaxCombineInjectNorm) {
    return false;
  }
  const AtlasBufferRef y = at(inject.y);
  return std::any_of(last.relocations.begin(), last.relocations.end(),
                     [&](const AtlasRelocation& one) {
                       return one.param_offset == offsetof(kernels::CombineExpertsParams, y) &&
                              one.target.buffer == y.buffer && one.target.offset == y.offset;
                     });
}

// ---- Sampling
// ------------------------------------------------------------------------------------

AtlasBufferRef StepLowering::sample_scratch() {
  const kernels::ControlLimits& limits = builder_.plan.limits;
  return workspace("sample scratch",
                   gpu_ ? kernels::sample_scratch_bytes(limits.vocab, limits.max_sequences)
                        : uint64_t{limits.max_sequences} * limits.vocab * sizeof(float));
}

Status StepLowering::lower(const SampleOp& op) {
  builder_.plan.logits = activation_buffer(op.logits);
  const auto submit_sample = [&](const char* kernel) {
    sdk::Launch<kernels::SampleParams> launch(kernel, kernels::kSampleParamsDigest);
    launch.point(&launch.params.control, control());
    launch.point(&launch.params.logits, at(op.logits));
    launch.point(&launch.params.scratch, sample_scratch());
    return submit(launch, bucket_.logit_rows, builder_.plan.limits.max_sequences);
  };
  // Blocks of a GPU share one row: all of them know its largest logit from the record before.
  if (gpu_) ATLAS_RETURN_IF_ERROR(submit_sample("sample_scan"));
  ATLAS_RETURN_IF_ERROR(submit_sample("sample"));
  name_ = "score";
  sdk::Launch<kernels::ScoreParams> score("score", kernels::kScoreParamsDigest);
  score.point(&score.params.control, control());
  score.point(&score.params.logits, at(op.logits));
  return submit(score, bucket_.logit_rows);
}

Status StepLowering::lower(const DraftBeginOp&) {
  sdk::Launch<kernels::DraftBeginParams> launch("draft_begin", kernels::kDraftBeginParamsDigest);
  launch.point(&launch.params.control, control());
  return submit(launch, 1);
}

Status StepLowering::lower(const DraftSampleOp& op) {
  const uint32_t sequences = builder_.plan.limits.max_sequences;
  const auto submit_draft = [&](const char* kernel) {
    sdk::Launch<kernels::DraftSampleParams> launch(kernel, kernels::kDraftSampleParamsDigest);
    launch.point(&launch.params.control, control());
    launch.point(&launch.params.logits, at(op.logits));
    launch.point(&launch.params.scratch, sample_scratch());
    launch.params.number = op.number;
    return submit(launch, std::min(sequences, bucket_.logit_rows), sequences);
  };
  if (gpu_) ATLAS_RETURN_IF_ERROR(submit_draft("draft_scan"));
  return submit_draft("draft_sample");
}

Status lower_step(PlanBuilder& builder, const Bucket& bucket) {
  return StepLowering(builder, bucket).run();
}

}  // namespace atlas::plan
