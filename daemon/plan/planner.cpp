// make_plan: control block, pages, weights, then the steps of every bucket, then the ledger.
#include "daemon/plan/planner.h"

#include <algorithm>

#include "daemon/device/abi_call.h"
#include "daemon/plan/lowering.h"

namespace atlas::plan {

using kernels::align_up;

BufferId PlanBuilder::buffer(const std::string& name, LedgerLine line, uint64_t bytes,
                             AtlasMemoryKind memory) {
  const auto [found, inserted] =
      buffers_by_name_.try_emplace(name, static_cast<BufferId>(plan.buffers.size()));
  if (inserted) plan.buffers.push_back({name, line, memory, 0});
  Buffer& buffer = plan.buffers[found->second];
  buffer.bytes = std::max(buffer.bytes, bytes);
  return found->second;
}

const QuantBackend& PlanBuilder::quant(const std::string& name) const {
  const auto found = std::find_if(input_.quant.begin(), input_.quant.end(),
                                  [&](const QuantBackend& one) { return one.name == name; });
  ATLAS_CHECK(found != input_.quant.end(), "a weight was claimed by a plugin that is not there");
  return *found;
}

Result<const AttentionBackend*> PlanBuilder::attention(const std::string& name) const {
  for (const AttentionBackend& backend : input_.attention) {
    if (backend.name == name) return &backend;
  }
  return not_found(
      "the model needs attention backend '{}', and no such plugin is loaded: add it to "
      "`plugins` in the settings",
      name);
}

Result<PlanBuilder::Claimed> PlanBuilder::claim(const WeightName& weight) const {
  const std::vector<AtlasTensor> tensors = input_.weights->module_tensors(weight.module, false);
  if (tensors.empty()) {
    return not_found("the checkpoint has no tensor of module '{}'", weight.module);
  }
  AtlasWeightQuery query{};
  query.struct_size = sizeof(query);
  query.tensor_count = static_cast<uint32_t>(tensors.size());
  query.platform = input_.platform.c_str();
  query.module = weight.module.c_str();
  query.n = weight.n;
  query.k = weight.k;
  query.tensors = tensors.data();
  std::string asked;
  for (const QuantBackend& backend : input_.quant) {
    Claimed claimed{weight, backend.name, {}};
    claimed.claim.struct_size = sizeof(AtlasWeightClaim);
    ATLAS_RETURN_IF_ERROR(abi::call(fmt::format("plugin '{}', claim", backend.name),
                                    backend.api->claim, &query, &claimed.claim));
    asked += (asked.empty() ? "" : ", ") + backend.name;
    if (claimed.claim.claimed == 0) continue;
    const AtlasWeightClaim& claim = claimed.claim;
    if ((weight.n != 0 && claim.n != weight.n) || (weight.k != 0 && claim.k != weight.k)) {
      return invalid_argument(
          "weight '{}' is [{}, {}] in the checkpoint and [{}, {}] in its config", weight.module,
          claim.n, claim.k, weight.n, weight.k);
    }
    if (claim.row_group == 0 || claim.group_bytes == 0 || claim.n == 0 || claim.k == 0) {
      return internal_error("plugin '{}' claims '{}' with an empty layout", backend.name,
                            weight.module);
    }
    return claimed;
  }
  std::string found;
  for (const AtlasTensor& tensor : tensors) {
    found += fmt::format("{}{} ({})", found.empty() ? "" : ", ", tensor.name,
                         abi::dtype_name(tensor.dtype));
  }
  return unimplemented(
      "no quantization plugin reads module '{}': it has {}; asked: {}. Add a plugin "
      "that reads this format to `plugins` in the settings",
      weight.module, found, asked.empty() ? "none" : asked);
}

void PlanBuilder::append_part(Weight& weight, const Claimed& claimed) {
  const AtlasWeightClaim& claim = claimed.claim;
  const uint64_t groups = (claim.n + claim.row_group - 1) / claim.row_group;
  Buffer& buffer = plan.buffers[weight.buffer];
  weight.parts.push_back({claimed.name.module, claim, buffer.bytes, groups * claim.group_bytes});
  buffer.bytes += groups * claim.group_bytes;
  weight.n += claim.n;
}

Result<std::vector<PlacedWeight>> PlanBuilder::place(const std::vector<WeightName>& weights) {
  std::string key;
  for (const WeightName& weight : weights) key += weight.module + "\n";
  if (const auto known = placed_by_modules_.find(key); known != placed_by_modules_.end()) {
    return known->second;
  }
  std::vector<PlacedWeight> placed;
  uint64_t y_first = 0;
  for (const WeightName& name : weights) {
    ATLAS_ASSIGN_OR_RETURN(Claimed claimed, claim(name));
    const AtlasWeightClaim& claim = claimed.claim;
    Weight* last = placed.empty() ? nullptr : &plan.weights[placed.back().weight];
    // A packed buffer can go on only where the part before it ends on a whole group of rows.
    const bool joins = last != nullptr && last->plugin == claimed.plugin &&
                       last->format == claim.format && last->k == claim.k &&
                       last->contract == claim.contract && last->n % claim.row_group == 0 &&
                       last->parts.back().claim.row_group == claim.row_group;
    if (!joins) {
      placed.push_back({static_cast<uint32_t>(plan.weights.size()), y_first});
      const BufferId id = buffer("weight " + name.module, LedgerLine::kWeights, 0);
      plan.weights.push_back({claimed.plugin, claim.format, claim.contract, id, 0, claim.k, {}});
    }
    append_part(plan.weights[placed.back().weight], claimed);
    y_first += claim.n;
  }
  placed_by_modules_[key] = placed;
  return placed;
}

Result<BufferId> PlanBuilder::vector(const VectorName& vector) {
  if (const auto known = vectors_by_name_.find(vector.tensor); known != vectors_by_name_.end()) {
    return known->second;
  }
  uint64_t n = vector.values.size();
  if (vector.values.empty()) {
    ATLAS_ASSIGN_OR_RETURN(const AtlasTensor tensor, input_.weights->tensor(vector.tensor, false));
    n = 1;
    for (uint32_t i = 0; i < tensor.rank; ++i) n *= tensor.dims[i];
    if (tensor.dtype != ATLAS_F32 && tensor.dtype != ATLAS_F16 && tensor.dtype != ATLAS_BF16) {
      return invalid_argument("tensor '{}' is {}: a vector must be f32, f16 or bf16", vector.tensor,
                              abi::dtype_name(tensor.dtype));
    }
    if (vector.n != 0 && n != vector.n) {
      return invalid_argument("tensor '{}' has {} elements in the checkpoint and {} in its config",
                              vector.tensor, n, vector.n);
    }
  }
  const BufferId id =
      buffer("vector " + vector.tensor, LedgerLine::kWeights, align_up(n * sizeof(float), 256));
  plan.vectors.push_back(
      {vector.values.empty() ? vector.tensor : std::string(), vector.values, id, n});
  vectors_by_name_[vector.tensor] = id;
  return id;
}

namespace {

/// Pages: what the attention backends ask for, layer after layer inside one page.
Status plan_pages(PlanBuilder& builder) {
  Plan& plan = builder.plan;
  const Shape& shape = builder.input().shape;
  for (const NamedOperation& named : builder.input().program->operations) {
    const auto* op = std::get_if<AttentionOp>(&named.operation);
    if (op == nullptr) continue;
    ATLAS_ASSIGN_OR_RETURN(const AttentionBackend* backend, builder.attention(op->backend));
    AtlasAttentionProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = plan.limits.max_rows;
    problem.platform = builder.input().platform.c_str();
    problem.backend = op->backend.c_str();
    problem.heads = op->heads;
    problem.kv_heads = op->kv_heads;
    problem.head_dim = op->head_dim;
    problem.max_sequences = shape.max_sequences;
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    ATLAS_RETURN_IF_ERROR(abi::call(fmt::format("{}: plugin '{}'", named.name, op->backend),
                                    backend->api->needs, &problem, &needs));
    if (needs.page_tokens == 0 ||
        (plan.page_tokens != 0 && plan.page_tokens != needs.page_tokens)) {
      return failed_precondition("{}: plugin '{}' wants pages of {} tokens beside pages of {}",
                                 named.name, op->backend, needs.page_tokens, plan.page_tokens);
    }
    plan.page_tokens = needs.page_tokens;
    plan.page_bytes += align_up(needs.bytes_per_page, 64);
    plan.state_layout += fmt::format("{}:{};", op->backend, needs.state_layout);
  }
  if (plan.page_tokens == 0) return invalid_argument("the model has no attention layer");
  plan.limits.max_pages =
      static_cast<uint32_t>((shape.context_tokens + plan.page_tokens - 1) / plan.page_tokens);
  // One page for scratch rows and the start-up self-test, besides those of sequences.
  plan.page_count =
      static_cast<uint32_t>((shape.cache_tokens + plan.page_tokens - 1) / plan.page_tokens) + 1;
  if (plan.page_count - 1 < plan.limits.max_pages) {
    return invalid_argument(
        "engine.cache_tokens {} holds less than one sequence of engine.context_tokens {}: raise "
        "the "
        "first or lower the second",
        shape.cache_tokens, shape.context_tokens);
  }
  plan.pages = builder.buffer("pages", LedgerLine::kCache, plan.page_count * plan.page_bytes);
  return {};
}

void plan_control(PlanBuilder& builder) {
  Plan& plan = builder.plan;
  kernels::ControlLimits& limits = plan.limits;
  limits.max_page_updates = limits.max_rows / plan.page_tokens + 2 * limits.max_sequences;
  limits.max_biases = kMaxBiasesPerSequence * limits.max_sequences;
  limits.max_count_updates = limits.max_rows;  // one for each row that is output run again
  limits.pool_pages = plan.page_count;
  limits.max_positions = builder.input().shape.context_tokens;
  const auto entry_bytes = kernels::entry_layout(limits).bytes;
  const auto result_bytes = kernels::result_layout(limits).bytes;
  const auto device = [&](const char* name, uint64_t bytes) {
    return builder.buffer(name, LedgerLine::kControl, align_up(bytes, 256));
  };
  plan.control = device("control", sizeof(kernels::StepControl));
  plan.entry = device("entry", entry_bytes);
  plan.slots = device("slots", limits.max_slots * sizeof(kernels::SlotState));
  plan.block_table =
      device("block_table", uint64_t{limits.max_slots} * limits.max_pages * sizeof(uint32_t));
  plan.counts = device("counts", uint64_t{limits.max_slots} * limits.vocab * sizeof(uint32_t));
  plan.rows = device("rows", limits.max_rows * sizeof(kernels::RowInput));
  plan.logit_rows = device("logit_rows", limits.max_logit_rows * sizeof(uint32_t));
  plan.sampled = device("sampled", limits.max_sequences * sizeof(uint32_t));
  plan.scores = device("scores", limits.max_logit_rows * sizeof(kernels::RowScore));
  plan.ring = builder.buffer("ring", LedgerLine::kPinned, entry_bytes * limits.ring_entries,
                             ATLAS_MEMORY_PINNED);
  plan.results = builder.buffer("results", LedgerLine::kPinned, result_bytes * limits.ring_entries,
                                ATLAS_MEMORY_PINNED);
  plan.state_layout += fmt::format(
      "rows {} sequences {} logits {} slots {} pages {}x{} positions {} vocab {} control {:x}",
      limits.max_rows, limits.max_sequences, limits.max_logit_rows, limits.max_slots,
      plan.page_count, limits.max_pages, limits.max_positions, limits.vocab,
      kernels::kControlDigest);
}

void plan_ledger(Plan& plan, const Shape& shape) {
  for (const Buffer& buffer : plan.buffers) plan.ledger.bytes[buffer.line] += buffer.bytes;
  uint64_t records = 0;
  for (const StepPlan& step : plan.steps) {
    for (const Record& record : step.records) records += sizeof(AtlasLaunch) + record.params.size();
  }
  plan.ledger.bytes[LedgerLine::kGraphs] = 2 * records;  // graph and eager walk
  plan.ledger.bytes[LedgerLine::kHostHeap] = shape.host_heap_bytes;
  plan.ledger.bytes[LedgerLine::kReserve] = shape.reserve_bytes;
}

void describe_weight_layout(Plan& plan, const WeightSource& source) {
  plan.weight_layout = source.identity() + ";";
  for (const Weight& weight : plan.weights) {
    for (const WeightPart& part : weight.parts) {
      // A plugin that gives no layout text cannot say that another build of it packs alike.
      const std::string layout = part.claim.layout[0] != '\0' ? part.claim.layout : "unshared";
      plan.weight_layout += fmt::format("{} {} {} {}x{};", part.module, weight.format, layout,
                                        part.claim.n, part.claim.k);
    }
  }
}

}  // namespace

Result<Plan> make_plan(const PlanInput& input) {
  PlanBuilder builder(input);
  Plan& plan = builder.plan;
  const Shape& shape = input.shape;
  if (shape.buckets.empty() || shape.max_sequences == 0 || shape.context_tokens == 0) {
    return invalid_argument(
        "a plan needs at least one bucket, one sequence and one token of context");
  }
  plan.platform = input.platform;
  plan.limits.ring_entries = shape.ring_entries;
  plan.limits.max_sequences = shape.max_sequences;
  plan.limits.max_slots = shape.max_sequences + 1;  // the last is for scratch
  plan.limits.vocab = input.program->vocab;
  for (const Bucket& bucket : shape.buckets) {
    plan.limits.max_rows = std::max(plan.limits.max_rows, bucket.rows);
    plan.limits.max_logit_rows = std::max(plan.limits.max_logit_rows, bucket.logit_rows);
  }
  ATLAS_RETURN_IF_ERROR(plan_pages(builder));
  plan_control(builder);
  for (const Bucket& bucket : shape.buckets) {
    ATLAS_RETURN_IF_ERROR(lower_step(builder, bucket));
  }
  describe_weight_layout(plan, *input.weights);
  plan_ledger(plan, shape);
  return std::move(builder.plan);
}

}  // namespace atlas::plan
