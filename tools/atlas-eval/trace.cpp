#include "tools/atlas-eval/trace.h"

#include <algorithm>

namespace atlas::eval {

using engine::StepRows;
using engine::TokenId;
using plan::RowDomain;

std::string part_of(const std::string& operation) {
  const size_t dot = operation.find('.');
  if (dot == std::string::npos) return "input";
  // Numbered parts: the number belongs to the name.
  const size_t end = operation.find('.', dot + 1);
  const std::string second = operation.substr(dot + 1, end - dot - 1);
  const bool numbered = !second.empty() && std::all_of(second.begin(), second.end(),
                                                       [](char c) { return c >= '0' && c <= '9'; });
  return operation.substr(0, numbered ? end : dot);
}

namespace {

class WalkTrace final : public Trace {
 public:
  WalkTrace(exec::StepWalk& walk, const plan::StepProgram& program, uint32_t rows, Stream& stream)
      : walk_(walk), program_(program), rows_(rows), stream_(stream) {}

  Result<std::optional<Tensor>> next() override {
    for (;;) {
      ATLAS_ASSIGN_OR_RETURN(const std::optional<uint32_t> index, walk_.next(stream_));
      if (!index) return std::optional<Tensor>();
      if (*index == plan::kNoOperation) continue;
      const plan::NamedOperation& named = program_.operations.at(*index);
      const std::optional<plan::Value> value = plan::written_value(named.operation);
      if (!value || value->domain == RowDomain::kDraftRows) continue;
      Tensor tensor{.index = *index,
                    .operation = named.name,
                    .activation = program_.activations.at(value->activation).name,
                    .first_column = value->first,
                    .rows = rows_,
                    .columns = value->width,
                    .values = {}};
      ATLAS_ASSIGN_OR_RETURN(tensor.values, walk_.read(program_, *value, rows_, stream_));
      return std::optional(std::move(tensor));
    }
  }

 private:
  exec::StepWalk& walk_;
  const plan::StepProgram& program_;
  const uint32_t rows_;
  Stream& stream_;
};

}  // namespace

tools::EngineNeeds Tracer::needs(uint32_t tokens) {
  return {.sequences = 1, .sequence_tokens = std::max(2u, tokens), .scored_rows = tokens};
}

Result<std::unique_ptr<Tracer>> Tracer::open(settings::Settings settings, uint32_t tokens) {
  settings.engine.graphs = false;  // a walk takes no graph
  std::unique_ptr<Tracer> tracer(new Tracer);
  ATLAS_ASSIGN_OR_RETURN(tracer->model_, tools::LocalModel::open(settings, tokens));
  ATLAS_ASSIGN_OR_RETURN(tracer->stepper_, tracer->model_->stepper());
  return tracer;
}

Status Tracer::run(const std::vector<TokenId>& ids, const std::function<Status(Trace&)>& look) {
  ATLAS_RETURN_IF_ERROR(model_->check_length("the list of ids", ids.size()));
  for (const TokenId id : ids) {
    if (id >= model_->info().vocab) {
      return invalid_argument("the ids have {}, and the vocabulary has {} tokens", id,
                              model_->info().vocab);
    }
  }
  const auto count = static_cast<uint32_t>(ids.size());
  const StepRows rows{0, ids, count, true};
  const plan::StepProgram& program = model_->generation().model().program;
  const auto launch = [&](const plan::Bucket& bucket, Stream& stream) -> Status {
    ATLAS_ASSIGN_OR_RETURN(exec::StepWalk walk, model_->walk(bucket));
    WalkTrace trace(walk, program, count, stream);
    return look(trace);
  };
  const auto logits = stepper_->run(plan::StepKind::kPrefill, {&rows, 1}, launch);
  return logits ? Status() : logits.error();
}

}  // namespace atlas::eval
