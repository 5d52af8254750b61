// make_plan: control block, pages, weights, then the steps of every bucket, then the ledger.
#include "daemon/plan/planner.h"

#include <algorithm>

#include "daemon/base/nearest_name.h"
#include "daemon/device/abi_call.h"
#include "daemon/plan/concurrency.h"
#include "daemon/plan/lowering.h"
#include "kernels/common/core.h"

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

namespace {

/// "m.weight (u8), m.weight_scale (f8_e4m3)".
std::string list_tensors(const std::vector<AtlasTensor>& tensors) {
  std::string text;
  for (const AtlasTensor& tensor : tensors) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", tensor.name,
                        abi::dtype_name(tensor.dtype));
  }
  return text;
}

/// " (is 'nvfp4' meant?)" if what was declared is a slip for the name of the format that was found:
/// for "exl3_k4_mul1", "exl3_k4" or "exl3". A config's words are other tools', and not compared.
std::string meant_format(const DeclaredFormat& declared, const std::string& found) {
  const DeclaredFormats& source = *declared.source;
  const auto& formats = declared.entry ? source.modules[*declared.entry].formats : source.formats;
  if (formats != std::vector<std::string>{declared.word}) return "";
  std::vector<std::string_view> names = {found};
  for (size_t end = found.rfind('_'); end != found.npos && end > 0;
       end = found.rfind('_', end - 1)) {
    names.push_back(std::string_view(found).substr(0, end));
  }
  const std::string_view nearest = nearest_name(declared.word, names);
  if (nearest.empty() || edit_distance(declared.word, nearest) > 2) return "";
  return fmt::format(" (is '{}' meant?)", nearest);
}

}  // namespace

Result<PlanBuilder::Claimed> PlanBuilder::claim(const WeightName& weight) {
  const std::vector<AtlasTensor> tensors = input_.weights->module_tensors(weight.module);
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
  query.normed_rows = weight.normed_rows ? 1 : 0;
  const std::optional<DeclaredFormat> declared = declarations_.find(weight.module);
  std::string asked, other;
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
    if (declared && !declared->allows(claim.format)) {
      if (other.empty()) other = claim.format;
      continue;
    }
    count_declared(declared, claimed);
    return claimed;
  }
  const std::string found = list_tensors(tensors);
  if (!other.empty()) {
    return invalid_argument(
        "'{}' is in format '{}' by its tensors, {}; {} says '{}'{}{}: {}", weight.module, other,
        found, declared->source->source, declared->word,
        declared->entry
            ? fmt::format(" for '{}'", declared->source->modules[*declared->entry].pattern)
            : "",
        meant_format(*declared, other), declared->source->remedy);
  }
  return unimplemented(
      "no quantization plugin reads module '{}': it has {}; asked: {}. Add a plugin "
      "that reads this format to `plugins` in the settings",
      weight.module, found, asked.empty() ? "none" : asked);
}

void PlanBuilder::count_declared(const std::optional<DeclaredFormat>& declared,
                                 const Claimed& claimed) {
  ++claims_;
  for (size_t i = 0; i < followed_.size(); ++i) {
    const DeclaredFormats& one = input_.declared[i];
    const auto& formats = one.formats;
    if (std::any_of(formats.begin(), formats.end(), [&](const std::string& name) {
          return format_is(claimed.claim.format, name);
        })) {
      ++followed_[i].in_format;
    }
    if (!declared || declared->source != &one) continue;
    ++followed_[i].weights;
    if (declared->entry) followed_[i].entries.insert(*declared->entry);
  }
}

Status PlanBuilder::check_declared() const {
  for (size_t i = 0; i < followed_.size(); ++i) {
    const DeclaredFormats& one = input_.declared[i];
    for (size_t entry = 0; one.all_match && entry < one.modules.size(); ++entry) {
      if (followed_[i].entries.contains(entry)) continue;
      return invalid_argument(
          "{}: '{}' decides about no weight of the model: none has such a name, or an earlier "
          "pattern matches all that do",
          one.source, one.modules[entry].pattern);
    }
    // What stands before it may be there because it is wrong.
    if (one.formats.empty() || followed_[i].weights != claims_ || followed_[i].in_format != 0) {
      continue;
    }
    return invalid_argument("{} says '{}', and no weight of the model is in that format: {}",
                            one.source, one.word, one.remedy);
  }
  return {};
}

void PlanBuilder::append_part(Weight& weight, const Claimed& claimed) {
  const AtlasWeightClaim& claim = claimed.claim;
  const uint64_t groups = (claim.n + claim.row_group - 1) / claim.row_group;
  Buffer& buffer = plan.buffers[weight.buffer];
  const uint64_t bytes = claim.head_bytes + groups * claim.group_bytes;
  weight.parts.push_back({claimed.name.module, claim, buffer.bytes, bytes});
  buffer.bytes += bytes;
}

/// A packed buffer can go on only where the part before it ends on a whole group of rows.
bool PlanBuilder::joins(const Weight& weight, const Claimed& claimed) const {
  const AtlasWeightClaim& claim = claimed.claim;
  return weight.plugin == claimed.plugin && weight.format == claim.format && weight.k == claim.k &&
         weight.contract == claim.contract && weight.n % claim.row_group == 0 &&
         claim.head_bytes == 0 && weight.parts.back().claim.head_bytes == 0 &&
         weight.parts.back().claim.row_group == claim.row_group;
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
    if (placed.empty() || !joins(plan.weights[placed.back().weight], claimed)) {
      placed.push_back({static_cast<uint32_t>(plan.weights.size()), y_first});
      const BufferId id = buffer("weight " + name.module, LedgerLine::kWeights, 0);
      plan.weights.push_back(
          {claimed.plugin, claim.format, claim.contract, id, 0, claim.k, 1, 0, {}});
    }
    Weight& weight = plan.weights[placed.back().weight];
    append_part(weight, claimed);
    weight.n += claim.n;
    y_first += claim.n;
  }
  placed_by_modules_[key] = placed;
  return placed;
}

Result<std::vector<PlacedWeight>> PlanBuilder::place_experts(
    const std::string& module, uint32_t experts, const std::vector<WeightName>& projections) {
  std::string key = module + "\n";
  for (const WeightName& projection : projections) key += projection.module + "\n";
  if (const auto known = placed_by_modules_.find(key); known != placed_by_modules_.end()) {
    return known->second;
  }
  const auto claim_of = [&](uint32_t expert, const WeightName& projection) {
    return claim({fmt::format("{}.{}.{}", module, expert, projection.module), projection.n,
                  projection.k, projection.normed_rows});
  };
  ATLAS_ASSIGN_OR_RETURN(
      std::vector<PlacedWeight> placed, [&]() -> Result<std::vector<PlacedWeight>> {
        std::vector<PlacedWeight> first;
        uint64_t y_first = 0;
        for (const WeightName& projection : projections) {
          ATLAS_ASSIGN_OR_RETURN(Claimed claimed, claim_of(0, projection));
          if (first.empty() || !joins(plan.weights[first.back().weight], claimed)) {
            first.push_back({static_cast<uint32_t>(plan.weights.size()), y_first});
            const BufferId id = buffer("weight " + claimed.name.module, LedgerLine::kWeights, 0);
            plan.weights.push_back({claimed.plugin,
                                    claimed.claim.format,
                                    claimed.claim.contract,
                                    id,
                                    0,
                                    claimed.claim.k,
                                    experts,
                                    0,
                                    {}});
          }
          Weight& weight = plan.weights[first.back().weight];
          append_part(weight, claimed);
          weight.n += claimed.claim.n;
          weight.expert_bytes = plan.buffers[weight.buffer].bytes;
          y_first += claimed.claim.n;
        }
        return first;
      }());
  for (uint32_t expert = 1; expert < experts; ++expert) {
    size_t at = 0;
    for (const PlacedWeight& one : placed) {
      Weight& weight = plan.weights[one.weight];
      const size_t parts = weight.parts.size() / expert;
      for (size_t i = 0; i < parts; ++i, ++at) {
        ATLAS_ASSIGN_OR_RETURN(const Claimed claimed, claim_of(expert, projections[at]));
        const AtlasWeightClaim& model = weight.parts[i].claim;
        if (claimed.plugin != weight.plugin || weight.format != claimed.claim.format ||
            weight.contract != claimed.claim.contract ||
            claimed.claim.group_bytes != model.group_bytes ||
            claimed.claim.head_bytes != model.head_bytes ||
            claimed.claim.row_group != model.row_group || claimed.claim.n != model.n) {
          return unimplemented(
              "'{}' is in format '{}' (plugin '{}') and '{}' in format '{}' (plugin '{}'): the "
              "experts of a layer must have one",
              weight.parts[i].module, weight.format, weight.plugin, claimed.name.module,
              claimed.claim.format, claimed.plugin);
        }
        append_part(weight, claimed);
      }
    }
  }
  placed_by_modules_[key] = placed;
  return placed;
}

BufferId PlanBuilder::constant(const std::string& name, std::span<const uint64_t> values) {
  const BufferId id =
      buffer("constant " + name, LedgerLine::kWeights, align_up(values.size_bytes(), 256));
  const auto bytes = std::as_bytes(values);
  for (const Constant& known : plan.constants) {
    if (known.buffer == id) return id;
  }
  plan.constants.push_back({{bytes.begin(), bytes.end()}, id});
  return id;
}

Result<BufferId> PlanBuilder::vector(const VectorName& vector) {
  const std::string name =
      vector.plus == 0 ? vector.tensor : fmt::format("{} + {}", vector.tensor, vector.plus);
  if (const auto known = vectors_by_name_.find(name); known != vectors_by_name_.end()) {
    return known->second;
  }
  uint64_t n = vector.values.size();
  if (vector.values.empty()) {
    ATLAS_ASSIGN_OR_RETURN(const AtlasTensor tensor, input_.weights->tensor(vector.tensor));
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
      buffer("vector " + name, LedgerLine::kWeights, align_up(n * sizeof(float), 256));
  plan.vectors.push_back(
      {vector.values.empty() ? vector.tensor : std::string(), vector.values, id, n, vector.plus});
  vectors_by_name_[name] = id;
  return id;
}

std::string state_name(const std::string& backend, uint32_t layer) {
  return fmt::format("{}.{}", backend, layer);
}

namespace {

/// Adds up what the layers keep in a page, a slot and an anchor.
class StatePlanner {
 public:
  explicit StatePlanner(PlanBuilder& builder) : builder_(builder), plan_(builder.plan) {}

  Status run() {
    for (const NamedOperation& named : builder_.input().program->operations) {
      Status status;
      if (const auto* attention = std::get_if<AttentionOp>(&named.operation)) {
        status = add_layer(attention->backend, attention->layer,
                           *attention_request(*attention, plan_, plan_.limits.max_rows));
      } else if (const auto* delta = std::get_if<DeltaOp>(&named.operation)) {
        status = add_layer(delta->backend, delta->layer,
                           *attention_request(*delta, plan_, plan_.limits.max_rows));
      } else if (const auto* conv = std::get_if<NgramConvOp>(&named.operation)) {
        add_ngram_conv(*conv);
      }
      if (!status.ok()) return status.with_context(named.name);
    }
    return {};
  }

 private:
  Status add_layer(const std::string& name, uint32_t layer, const AttentionRequest& request) {
    const std::string key = state_name(name, layer);
    if (builder_.states.contains(key)) return {};
    ATLAS_ASSIGN_OR_RETURN(const AttentionBackend* backend, builder_.attention(name));
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    ATLAS_RETURN_IF_ERROR(
        abi::call(fmt::format("plugin '{}'", name), backend->api->needs, &request.problem, &needs));
    ATLAS_RETURN_IF_ERROR(agree("pages", name, needs.page_tokens, plan_.page_tokens));
    ATLAS_RETURN_IF_ERROR(agree("anchors", name, needs.anchor_tokens, plan_.limits.anchor_tokens));
    if (needs.bytes_per_page != 0 && needs.page_tokens == 0) {
      return failed_precondition("plugin '{}' wants pages of 0 tokens", name);
    }
    add(key, needs.bytes_per_page, needs.bytes_per_slot, needs.bytes_per_anchor);
    plan_.state_layout += fmt::format("{}:{};", name, needs.state_layout);
    return {};
  }

  static Status agree(const char* what, const std::string& name, uint32_t wanted, uint32_t& known) {
    if (wanted == 0) return {};
    if (known != 0 && known != wanted) {
      return failed_precondition("plugin '{}' wants {} of {} tokens beside {} of {}", name, what,
                                 wanted, what, known);
    }
    known = wanted;
    return {};
  }

  void add_ngram_conv(const NgramConvOp& op) {
    const uint64_t row = op.in.width * sizeof(float);
    const uint32_t reach = (op.taps - 1) * op.dilation;
    add(state_name("ngram_conv", 0), 0, kernels::conv_ring_rows(reach) * row, reach * row);
    plan_.state_layout += fmt::format("ngram_conv {} {}x{};", op.in.width, op.taps, op.dilation);
  }

  void add(const std::string& key, uint64_t page, uint64_t slot, uint64_t anchor) {
    builder_.states[key] = {plan_.page_bytes, plan_.slot_bytes, plan_.anchor_bytes};
    plan_.page_bytes += align_up(page, 64);
    plan_.slot_bytes += align_up(slot, 64);
    plan_.anchor_bytes += align_up(anchor, 64);
  }

  PlanBuilder& builder_;
  Plan& plan_;
};

/// Pages, slots and anchors: how many of them, and their buffers.
Status plan_state(PlanBuilder& builder) {
  Plan& plan = builder.plan;
  const Shape& shape = builder.input().shape;
  ATLAS_RETURN_IF_ERROR(StatePlanner(builder).run());
  if (plan.page_tokens == 0) return invalid_argument("the model has no attention layer");
  if (plan.limits.anchor_tokens != 0 && plan.page_tokens % plan.limits.anchor_tokens != 0) {
    return failed_precondition("anchors every {} tokens do not divide pages of {}",
                               plan.limits.anchor_tokens, plan.page_tokens);
  }
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
  // Layers without keys keep nothing in a page: positions are counted in pages all the same.
  plan.pages = builder.buffer("pages", LedgerLine::kCache,
                              std::max<uint64_t>(64, plan.page_count * plan.page_bytes));
  if (plan.slot_bytes != 0) {
    plan.slot_state =
        builder.buffer("slot_state", LedgerLine::kCache, plan.limits.max_slots * plan.slot_bytes);
  }
  if (plan.limits.anchor_tokens != 0) {
    // A live sequence has its latest and a spare for each step in flight; the last is for scratch.
    // More snapshots than pages would have no page to stand at the end of.
    const uint64_t bytes = std::max<uint64_t>(64, plan.anchor_bytes);
    const uint64_t snapshots = std::min<uint64_t>(shape.snapshot_bytes / bytes, plan.page_count);
    plan.limits.anchors = 3 * shape.max_sequences + static_cast<uint32_t>(snapshots) + 1;
    plan.anchors = builder.buffer("anchors", LedgerLine::kAnchors, plan.limits.anchors * bytes);
  }
  return {};
}

void plan_control(PlanBuilder& builder) {
  Plan& plan = builder.plan;
  kernels::ControlLimits& limits = plan.limits;
  limits.max_page_updates =
      limits.max_rows / plan.page_tokens + 3 * limits.max_sequences + limits.max_pages;
  limits.max_biases = kMaxBiasesPerSequence * limits.max_sequences;
  // One for each row that is output run again, and one for each id of a cached prefix.
  limits.max_count_updates =
      limits.max_rows + std::min(limits.vocab, builder.input().shape.context_tokens);
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
  plan.spans = device("spans", limits.max_sequences * sizeof(kernels::RowSpan));
  plan.draft_rows = device("draft_rows", limits.max_sequences * sizeof(kernels::RowInput));
  plan.draft_spans = device("draft_spans", limits.max_sequences * sizeof(kernels::RowSpan));
  plan.draft_sources = device("draft_sources", limits.max_sequences * sizeof(uint32_t));
  plan.next_ids = device("next_ids", limits.max_rows * sizeof(uint32_t));
  plan.logit_rows = device("logit_rows", limits.max_logit_rows * sizeof(uint32_t));
  plan.sampled = device("sampled", limits.max_logit_rows * sizeof(uint32_t));
  plan.scores = device("scores", limits.max_logit_rows * sizeof(kernels::RowScore));
  plan.ring = builder.buffer("ring", LedgerLine::kPinned, entry_bytes * limits.ring_entries,
                             ATLAS_MEMORY_PINNED);
  plan.results = builder.buffer("results", LedgerLine::kPinned, result_bytes * limits.ring_entries,
                                ATLAS_MEMORY_PINNED);
  plan.state_layout += fmt::format(
      "anchors {}x{} drafts {} rows {} sequences {} logits {} slots {} pages {}x{} positions {} "
      "vocab {} control {:x}",
      limits.anchors, limits.anchor_tokens, limits.drafts, limits.max_rows, limits.max_sequences,
      limits.max_logit_rows, limits.max_slots, plan.page_count, limits.max_pages,
      limits.max_positions, limits.vocab, kernels::kControlDigest);
}

void plan_ledger(Plan& plan, const Shape& shape) {
  for (const Buffer& buffer : plan.buffers) plan.ledger.bytes[buffer.line] += buffer.bytes;
  uint64_t records = 0;
  if (plan.feed) plan.ledger.bytes[LedgerLine::kRowCache] = shape.row_cache_bytes;
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
  plan.limits.drafts = input.program->drafts;
  for (const Bucket& bucket : shape.buckets) {
    plan.limits.max_rows = std::max(plan.limits.max_rows, bucket.rows);
    plan.limits.max_logit_rows = std::max(plan.limits.max_logit_rows, bucket.logit_rows);
  }
  ATLAS_RETURN_IF_ERROR(plan_state(builder));
  plan_control(builder);
  for (const Bucket& bucket : shape.buckets) {
    ATLAS_RETURN_IF_ERROR(lower_step(builder, bucket));
    ATLAS_RETURN_IF_ERROR(check_concurrency(plan, plan.steps.back()));
  }
  ATLAS_RETURN_IF_ERROR(builder.check_declared());
  describe_weight_layout(plan, *input.weights);
  plan_ledger(plan, shape);
  return std::move(builder.plan);
}

}  // namespace atlas::plan
