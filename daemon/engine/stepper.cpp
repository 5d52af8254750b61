#include "daemon/engine/stepper.h"

#include <algorithm>

namespace atlas::engine {

namespace {

/// A bias that no difference of logits comes near.
constexpr float kCertain = 1e30f;
/// How often a step begins again because the disk was slow, before it fails.
constexpr uint32_t kLateSteps = 2;

}  // namespace

Result<std::unique_ptr<Stepper>> Stepper::create(std::shared_ptr<Generation> generation,
                                                 const std::shared_ptr<Device>& device) {
  ATLAS_ASSIGN_OR_RETURN(Stream stream, device->create_stream());
  std::unique_ptr<Stepper> stepper(new Stepper(std::move(generation), std::move(stream)));
  stepper->slots_.resize(stepper->generation_->plan().limits.max_sequences);
  return stepper;
}

Stepper::~Stepper() {
  for (Slot& slot : slots_) give_back(slot);
}

uint32_t Stepper::max_scored_rows() const {
  uint32_t rows = 0;
  for (const plan::StepPlan& step : generation_->plan().steps) {
    const plan::Bucket& bucket = step.bucket;
    if (bucket.kind == plan::StepKind::kPrefill && bucket.rows == bucket.logit_rows) {
      rows = std::max(rows, bucket.rows);
    }
  }
  return rows;
}

void Stepper::give_back(Slot& slot) {
  CacheShare share{std::move(slot.pages), std::nullopt, {}};
  if (slot.anchor) share.anchors.push_back(*slot.anchor);
  generation_->pool().give_back(std::move(share), 0);
  slot = {};
}

plan::StepKind Stepper::decode_kind() const {
  return generation_->plan().limits.drafts == 0 ? plan::StepKind::kDecode : plan::StepKind::kVerify;
}

Result<std::optional<uint32_t>> Stepper::write_rows(const StepRows& rows, exec::EntryView& entry) {
  const plan::Plan& plan = generation_->plan();
  Slot& slot = slots_.at(rows.slot);
  const auto count = static_cast<uint32_t>(rows.tokens.size());
  const uint32_t pages = (slot.length + count + plan.page_tokens - 1) / plan.page_tokens;
  while (slot.pages.size() < pages) {
    const auto page = generation_->pool().take_page();
    if (!page || pages > plan.limits.max_pages) {
      return invalid_argument("{} positions do not fit the context or the cache",
                              slot.length + count);
    }
    slot.pages.push_back(*page);
  }
  kernels::SequenceInput& input = entry.sequences[entry.head->sequence_count++];
  input = {};
  input.slot = rows.slot;
  input.flags = (slot.length == 0 ? kernels::kSequenceReset : 0u) | kernels::kSequencePromptRows;
  input.first_row = entry.head->row_count;
  input.row_count = count;
  input.logit_first = entry.head->logit_count;
  input.logit_count = rows.logit_rows;
  input.next_token = rows.next.value_or(kernels::kNoToken);
  input.anchor = input.spare_anchor = kernels::kNoAnchor;
  std::fill_n(input.history, kernels::kHistoryIds, kernels::kNoToken);
  input.sampling.top_p = 1.0f;
  input.sampling.repetition_penalty = 1.0f;
  if (rows.next) {
    input.flags |= kernels::kSequenceSample;
    input.sampling.bias_first = entry.head->bias_count++;
    input.sampling.bias_count = 1;
    entry.biases[input.sampling.bias_first] = {*rows.next, kCertain};
  }
  std::copy(rows.tokens.begin(), rows.tokens.end(), entry.ids.begin() + entry.head->row_count);
  slot.tokens.insert(slot.tokens.end(), rows.tokens.begin(), rows.tokens.end());
  std::fill_n(entry.targets.begin() + entry.head->logit_count, rows.logit_rows, kernels::kNoToken);
  for (; slot.announced < pages; ++slot.announced) {
    entry.page_updates[entry.head->page_update_count++] = {rows.slot, slot.announced,
                                                           slot.pages[slot.announced], 0};
  }
  entry.head->row_count += count;
  entry.head->logit_count += rows.logit_rows;
  slot.length += count;
  const uint32_t chunk = plan.limits.anchor_tokens;
  if (chunk == 0 || count == 0 || (slot.length - 1) / chunk * chunk <= slot.anchor_index) {
    return std::optional<uint32_t>();
  }
  const auto spare = generation_->pool().take_anchor();
  if (!spare) return resource_exhausted("no anchor is free for {} sequences", slots_.size());
  input.spare_anchor = *spare;
  return spare;
}

Result<std::vector<float>> Stepper::run(plan::StepKind kind, std::span<const StepRows> rows,
                                        const StepLauncher& launch) {
  for (uint32_t late = 0;;) {
    ATLAS_ASSIGN_OR_RETURN(auto logits, run_once(kind, rows, launch));
    if (logits) return *std::move(logits);
    std::vector<std::vector<TokenId>> before;
    for (const StepRows& one : rows) {
      const std::vector<TokenId>& all = slots_.at(one.slot).tokens;
      before.emplace_back(all.begin(), all.end() - static_cast<ptrdiff_t>(one.tokens.size()));
    }
    for (bool there = false; !there;) {
      if (late++ == kLateSteps) {
        return unavailable("rows of the n-gram table were not read in time, {} times", late);
      }
      there = true;
      for (size_t i = 0; there && i < rows.size(); ++i) {
        ATLAS_ASSIGN_OR_RETURN(there, begin_again(rows[i].slot, before[i]));
      }
    }
  }
}

Result<bool> Stepper::begin_again(uint32_t slot, std::span<const TokenId> tokens) {
  uint32_t most = 0;
  for (const plan::StepPlan& step : generation_->plan().steps) {
    if (step.bucket.kind == plan::StepKind::kPrefill) most = std::max(most, step.bucket.rows);
  }
  give_back(slots_.at(slot));
  for (size_t first = 0; first < tokens.size(); first += most) {
    const auto left = tokens.subspan(first);
    const StepRows chunk{slot, left.first(std::min<size_t>(most, left.size())), 0, false, {}};
    ATLAS_ASSIGN_OR_RETURN(const auto done, run_once(plan::StepKind::kPrefill, {&chunk, 1}, {}));
    if (!done) return false;
  }
  return true;
}

Result<std::optional<std::vector<float>>> Stepper::run_once(plan::StepKind kind,
                                                            std::span<const StepRows> rows,
                                                            const StepLauncher& launch) {
  const plan::Plan& plan = generation_->plan();
  exec::Steps& steps = generation_->steps();
  uint32_t row_count = 0, logit_count = 0;
  for (const StepRows& one : rows) {
    row_count += static_cast<uint32_t>(one.tokens.size());
    logit_count += one.logit_rows;
  }
  const plan::Bucket* bucket = steps.bucket(kind, row_count, logit_count);
  if (bucket == nullptr || rows.size() > plan.limits.max_sequences) {
    return invalid_argument("no {} step holds {} rows of {} sequences with {} logit rows",
                            plan::step_kind_name(kind), row_count, rows.size(), logit_count);
  }
  if (!launch && !steps.verified(*bucket)) {
    ATLAS_RETURN_IF_ERROR(steps.verify(*bucket, stream_, generation_->scratch_page()));
  }
  exec::EntryView entry = generation_->control().begin();
  std::vector<std::optional<uint32_t>> spares;
  for (const StepRows& one : rows) {
    if (one.restart) give_back(slots_.at(one.slot));
    ATLAS_ASSIGN_OR_RETURN(const auto spare, write_rows(one, entry));
    spares.push_back(spare);
  }
  const uint64_t step = generation_->control().finish();
  ATLAS_RETURN_IF_ERROR(launch ? launch(*bucket, stream_) : steps.launch(*bucket, stream_));
  ATLAS_RETURN_IF_ERROR(stream_.synchronize());
  ATLAS_ASSIGN_OR_RETURN(const exec::ResultView result, generation_->control().result(step));
  bool late = false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const kernels::SequenceResult& one = result.sequences[i];
    late = late || one.error == kernels::kErrorFeedLate;
    if (one.error != 0 && one.error != kernels::kErrorFeedLate)
      return internal_error("step {} reports error bits {}", step, one.error);
    if (!spares[i]) continue;
    Slot& slot = slots_.at(rows[i].slot);
    if (slot.anchor) generation_->pool().give_back({{}, std::nullopt, {*slot.anchor}}, 0);
    slot.anchor = spares[i];
    slot.anchor_index = one.anchor_index;
  }
  if (late) return std::optional<std::vector<float>>();
  std::vector<float> logits(uint64_t{logit_count} * plan.limits.vocab);
  if (!logits.empty()) {
    ATLAS_RETURN_IF_ERROR(stream_.copy_to_host(
        logits.data(), steps.buffers().at(plan.logits).address(), logits.size() * sizeof(float)));
  }
  return std::optional(std::move(logits));
}

Result<std::vector<float>> Stepper::activation(const std::string& name, uint64_t elements) {
  const std::vector<plan::Buffer>& buffers = generation_->plan().buffers;
  const auto found = std::find_if(buffers.begin(), buffers.end(), [&](const plan::Buffer& one) {
    return one.name == "activation " + name;
  });
  if (found == buffers.end()) return invalid_argument("the plan has no activation '{}'", name);
  if (found->bytes / sizeof(float) < elements) {
    return invalid_argument("activation '{}' holds {} floats, and {} were asked for", name,
                            found->bytes / sizeof(float), elements);
  }
  const auto id = static_cast<plan::BufferId>(found - buffers.begin());
  std::vector<float> values(elements);
  ATLAS_RETURN_IF_ERROR(stream_.copy_to_host(
      values.data(), generation_->steps().buffers().at(id).address(), elements * sizeof(float)));
  return values;
}

Status Stepper::run_sequence(
    std::span<const TokenId> tokens, uint32_t chunk,
    const std::function<Status(uint32_t first, std::span<const float>)>& visit) {
  chunk = std::min(chunk, max_scored_rows());
  if (chunk == 0) return invalid_argument("a chunk needs at least one row");
  for (uint32_t first = 0; first < tokens.size();) {
    const auto count = std::min<uint32_t>(chunk, static_cast<uint32_t>(tokens.size()) - first);
    const bool decode = chunk == 1 && first > 0;
    const StepRows rows{0, tokens.subspan(first, count), count, first == 0};
    ATLAS_ASSIGN_OR_RETURN(const std::vector<float> logits,
                           run(decode ? decode_kind() : plan::StepKind::kPrefill, {&rows, 1}));
    ATLAS_RETURN_IF_ERROR(visit(first, logits));
    first += count;
  }
  return {};
}

}  // namespace atlas::engine
