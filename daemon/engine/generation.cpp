#include "daemon/engine/generation.h"

#include "daemon/base/log.h"
#include "daemon/exec/weight_loader.h"

namespace atlas::engine {

using plan::LedgerLine;

namespace {

std::atomic<uint64_t> next_generation{1};

plan::PlanInput plan_input(const PlannedModel& model, const std::string& platform) {
  return {.platform = platform,
          .weights = model.weights.get(),
          .quant = model.quant,
          .attention = model.attention,
          .declared = model.declared,
          .program = &model.program,
          .shape = model.shape};
}

bool same_weights(const plan::Plan& a, const plan::Plan& b) {
  // "unshared" marks packed weights whose plugin gave no layout text.
  return a.weight_layout == b.weight_layout &&
         a.weight_layout.find(" unshared ") == std::string::npos;
}

/// Bytes of what a generation has for itself after a swap of this class.
uint64_t own_bytes(const plan::Ledger& ledger, SwapClass swap) {
  const auto bytes = [&](LedgerLine line) {
    const auto found = ledger.bytes.find(line);
    return found == ledger.bytes.end() ? uint64_t{0} : found->second;
  };
  uint64_t sum = bytes(LedgerLine::kWorkspace) + bytes(LedgerLine::kGraphs);
  if (swap != SwapClass::kSteps) {
    sum += bytes(LedgerLine::kCache) + bytes(LedgerLine::kAnchors) + bytes(LedgerLine::kControl) +
           bytes(LedgerLine::kPinned);
  }
  if (swap == SwapClass::kWeights)
    sum += bytes(LedgerLine::kWeights) + bytes(LedgerLine::kRowCache);
  return sum;
}

}  // namespace

Status plan_model(PlannedModel& model, const std::string& platform) {
  ATLAS_ASSIGN_OR_RETURN(model.plan, plan::make_plan(plan_input(model, platform)));
  return {};
}

std::string_view swap_class_name(SwapClass swap) {
  switch (swap) {
    case SwapClass::kSteps:
      return "steps";
    case SwapClass::kState:
      return "state";
    case SwapClass::kWeights:
      return "weights";
  }
  return "unknown";
}

SwapClass swap_class(const plan::Plan& from, const plan::Plan& to) {
  if (!same_weights(from, to)) return SwapClass::kWeights;
  return from.state_layout == to.state_layout ? SwapClass::kSteps : SwapClass::kState;
}

uint64_t Generation::bytes_beside(const plan::Plan& plan, const plan::Plan* share) {
  const SwapClass swap = share == nullptr ? SwapClass::kWeights : swap_class(*share, plan);
  return own_bytes(plan.ledger, swap);
}

uint64_t Generation::bytes_not_in(const Generation& other) const {
  // What is really shared, for layouts may be equal by chance.
  const SwapClass swap = weights_ != other.weights_               ? SwapClass::kWeights
                         : state_.buffers != other.state_.buffers ? SwapClass::kState
                                                                  : SwapClass::kSteps;
  return own_bytes(plan().ledger, swap);
}

Result<std::shared_ptr<Generation>> Generation::build(std::shared_ptr<PlannedModel> model,
                                                      const std::shared_ptr<Device>& device,
                                                      const std::vector<Module>& modules,
                                                      const Generation* share,
                                                      const BuildProgress& progress,
                                                      const std::function<bool()>& stop) {
  const plan::Plan& plan = model->plan;
  const SwapClass swap = share == nullptr ? SwapClass::kWeights : swap_class(share->plan(), plan);
  std::shared_ptr<Generation> generation(new Generation);
  generation->model_ = model;
  generation->modules_ = modules;

  progress("resolving kernels", 0);
  ATLAS_ASSIGN_OR_RETURN(const exec::KernelTable kernels, exec::resolve_kernels(plan, modules));

  progress("allocating", 0);
  const auto allocate = [&](const std::vector<LedgerLine>& lines) {
    return exec::BufferSet::allocate(device, plan, lines);
  };
  ATLAS_ASSIGN_OR_RETURN(generation->workspace_, allocate({LedgerLine::kWorkspace}));
  if (swap == SwapClass::kSteps) {
    generation->state_ = share->state_;
  } else {
    ATLAS_ASSIGN_OR_RETURN(generation->state_.buffers,
                           allocate({LedgerLine::kCache, LedgerLine::kAnchors, LedgerLine::kControl,
                                     LedgerLine::kPinned}));
  }
  if (swap == SwapClass::kWeights) {
    ATLAS_ASSIGN_OR_RETURN(generation->weights_, allocate({LedgerLine::kWeights}));
  } else {
    generation->weights_ = share->weights_;
  }
  ATLAS_ASSIGN_OR_RETURN(
      exec::BufferTable buffers,
      exec::BufferTable::bind(
          plan, {generation->weights_, generation->state_.buffers, generation->workspace_}));

  ATLAS_ASSIGN_OR_RETURN(Stream stream, device->create_stream());
  if (swap == SwapClass::kWeights) {
    const auto report = [&](uint64_t done, uint64_t total) {
      progress("reading weights",
               total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total));
    };
    ATLAS_RETURN_IF_ERROR(exec::load_weights(plan_input(*model, plan.platform), plan, buffers,
                                             stream, model->load_threads, report, stop));
  }
  if (generation->state_.control == nullptr) {
    ATLAS_ASSIGN_OR_RETURN(generation->state_.control,
                           exec::ControlBlock::create(plan, buffers, stream));
    if (plan.feed) {
      ATLAS_CHECK(model->open_table != nullptr, "a plan with a feed and no table");
      ATLAS_ASSIGN_OR_RETURN(std::unique_ptr<exec::RowSource> table, model->open_table());
      generation->state_.control->attach(
          std::make_unique<exec::HostFeed>(plan, buffers, std::move(table)));
    }
    // The last page, slot and anchor are for self-tests.
    generation->state_.pool =
        std::make_shared<CachePool>(plan.page_count - 1, plan.limits.max_slots - 1,
                                    plan.limits.anchors == 0 ? 0 : plan.limits.anchors - 1);
  }
  generation->prefixes_ = std::make_unique<PrefixCache>(*generation->state_.pool, plan.page_tokens,
                                                        plan.limits.anchor_tokens != 0);
  progress("recording steps", 0);
  ATLAS_ASSIGN_OR_RETURN(generation->steps_,
                         exec::Steps::build(device, plan, kernels, std::move(buffers),
                                            generation->state_.control, model->graphs));
  model->info.generation = next_generation.fetch_add(1);
  generation->info_ = std::make_shared<const ModelInfo>(model->info);
  return generation;
}

}  // namespace atlas::engine
