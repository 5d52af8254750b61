#include "tools/atlas-quantize/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "daemon/model/tokenizer/tokenizer.h"
#include "tools/atlas-quantize/products.h"
#include "tools/common/files.h"

namespace atlas::quantize {

using engine::StepRows;
using engine::TokenId;

namespace {

constexpr uint32_t kStepRows = 256;

struct Want {
  std::set<std::string> modules;
  bool has(const std::string& module) const { return modules.contains(module); }
};

float silu(float x) { return x / (1.0f + std::exp(-x)); }

}  // namespace

struct Calibration::State {
  CalibrationOptions options;
  const Source* source = nullptr;
  std::unique_ptr<tools::LocalModel> model;
  std::unique_ptr<engine::Stepper> stepper;
  std::vector<TokenId> ids;
  std::vector<std::string> order;
  std::map<std::string, Moments> ready;
  // While walking:
  Want want;
  std::map<std::string, std::shared_ptr<Hessian>> sums;        // by module; sharers have one object
  std::map<std::string, std::shared_ptr<Hessian>> layer_sums;  // of all rows of an experts' layer

  std::shared_ptr<Hessian> sum(const std::string& key, uint64_t k) {
    auto& place = sums[key];
    if (place == nullptr) place = std::make_shared<Hessian>(k);
    return place;
  }
  Status walk(const std::function<void(double)>& on_part);
  Status run_step(std::span<const TokenId> part, bool restart);
  Status look(exec::StepWalk& walk, uint32_t rows, Stream& stream);
  Status look_linear(const plan::LinearOp& op, const std::vector<float>& x);
  Status look_experts(const plan::MoeOp& op, const std::vector<float>& x);
  Status hidden(const std::string& module, const Matrix& x, Matrix& out);
  Result<Matrix> weight(const std::string& module);
};

namespace {

uint64_t module_inputs(const Source& source, const std::string& module) {
  const model::TensorInfo* tensor = source.checkpoint().find(module + ".weight");
  return tensor == nullptr ? 0 : tensor->shape().back();
}

/// Rows of `x` with the numbers `rows`.
Matrix pick(const Matrix& x, const std::vector<uint32_t>& rows) {
  Matrix out(rows.size(), x.columns);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(x.row(rows[i]).begin(), x.columns, out.row(i).begin());
  }
  return out;
}

/// For each expert the rows that it is chosen for: of each row the `top` largest logits, which are
/// those of the largest shares.
std::vector<std::vector<uint32_t>> route(const Matrix& logits, uint32_t top) {
  std::vector<std::vector<uint32_t>> rows(logits.columns);
  std::vector<uint32_t> order(logits.columns);
  for (uint64_t r = 0; r < logits.rows; ++r) {
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return logits.at(r, a) > logits.at(r, b); });
    for (uint32_t i = 0; i < std::min<uint64_t>(top, order.size()); ++i) {
      rows[order[i]].push_back(static_cast<uint32_t>(r));
    }
  }
  return rows;
}

}  // namespace

Result<Matrix> Calibration::State::weight(const std::string& module) {
  const model::TensorInfo* tensor = source->checkpoint().find(module + ".weight");
  if (tensor == nullptr) return not_found("there is no tensor '{}.weight'", module);
  return source->read(*tensor);
}

/// silu(gate x) * up x.
Status Calibration::State::hidden(const std::string& module, const Matrix& x, Matrix& out) {
  ATLAS_ASSIGN_OR_RETURN(const Matrix gate, weight(module + ".gate_proj"));
  ATLAS_ASSIGN_OR_RETURN(const Matrix up, weight(module + ".up_proj"));
  out = multiply(x, gate, options.threads);
  const Matrix factor = multiply(x, up, options.threads);
  for (size_t i = 0; i < out.values.size(); ++i)
    out.values[i] = silu(out.values[i]) * factor.values[i];
  return {};
}

Status Calibration::State::look_linear(const plan::LinearOp& op, const std::vector<float>& x) {
  std::shared_ptr<Hessian> shared;
  for (const plan::WeightName& name : op.weights) {
    // Tied: the head's product names the embedding.
    const bool tied = name.module.ends_with(".embed_tokens");
    const std::string module = tied ? "lm_head" : name.module;
    if (!want.has(module)) continue;
    auto& place = sums[module];
    if (shared == nullptr) {
      if (place == nullptr) place = std::make_shared<Hessian>(op.x.width);
      shared = place;
      shared->add(x, options.threads);
    }
    place = shared;
  }
  return {};
}

Status Calibration::State::look_experts(const plan::MoeOp& op, const std::vector<float>& inputs) {
  Matrix x;
  x.columns = op.x.width;
  x.rows = inputs.size() / op.x.width;
  x.values = inputs;
  const std::string prefix = op.module + ".experts.";
  const auto first = want.modules.lower_bound(prefix);
  const bool experts = first != want.modules.end() && first->starts_with(prefix);
  if (experts) {
    ATLAS_ASSIGN_OR_RETURN(const Matrix router, weight(op.module + ".gate"));
    const auto rows = route(multiply(x, router, options.threads), op.top);
    auto& all_inputs = layer_sums[prefix];
    if (all_inputs == nullptr) all_inputs = std::make_shared<Hessian>(x.columns);
    all_inputs->add(x.values, options.threads);
    for (uint32_t e = 0; e < op.experts; ++e) {
      const std::string expert = fmt::format("{}{}", prefix, e);
      const bool gate = want.has(expert + ".gate_proj"), up = want.has(expert + ".up_proj");
      const bool down = want.has(expert + ".down_proj");
      const Matrix own = pick(x, rows[e]);
      if (gate || up) {
        const auto sum_of = sum(expert + ".gate_proj", x.columns);
        sums[expert + ".up_proj"] = sum_of;
        sum_of->add(own.values, options.threads);
      }
      if (!down) continue;
      // Of all rows, since few may be the expert's own.
      Matrix all_hidden;
      ATLAS_RETURN_IF_ERROR(hidden(expert, x, all_hidden));
      sum(expert + ".down_proj", op.intermediate)
          ->add(pick(all_hidden, rows[e]).values, options.threads);
      auto& all = layer_sums[expert + ".down_proj"];
      if (all == nullptr) all = std::make_shared<Hessian>(op.intermediate);
      all->add(all_hidden.values, options.threads);
    }
  }
  const std::string shared = op.module + ".shared_expert";
  if (op.shared_intermediate == 0) return {};
  if (want.has(shared + ".gate_proj") || want.has(shared + ".up_proj")) {
    const auto sum_of = sum(shared + ".gate_proj", x.columns);
    sums[shared + ".up_proj"] = sum_of;
    sum_of->add(x.values, options.threads);
  }
  if (want.has(shared + ".down_proj")) {
    Matrix values;
    ATLAS_RETURN_IF_ERROR(hidden(shared, x, values));
    sum(shared + ".down_proj", op.shared_intermediate)->add(values.values, options.threads);
  }
  return {};
}

Status Calibration::State::look(exec::StepWalk& steps, uint32_t rows, Stream& stream) {
  const plan::StepProgram& program = model->generation().model().program;
  for (;;) {
    ATLAS_ASSIGN_OR_RETURN(const std::optional<uint32_t> index, steps.next(stream));
    if (!index) return {};
    if (*index == plan::kNoOperation) continue;
    const plan::Operation& operation = program.operations.at(*index).operation;
    // An input still holds what the operation read: none of these writes its own.
    if (const auto* linear = std::get_if<plan::LinearOp>(&operation)) {
      const bool wanted = std::any_of(
          linear->weights.begin(), linear->weights.end(), [&](const plan::WeightName& name) {
            return want.has(name.module.ends_with(".embed_tokens") ? "lm_head" : name.module);
          });
      if (!wanted || linear->x.domain == plan::RowDomain::kDraftRows) continue;
      ATLAS_ASSIGN_OR_RETURN(const auto x, steps.read(program, linear->x, rows, stream));
      ATLAS_RETURN_IF_ERROR(look_linear(*linear, x));
    } else if (const auto* moe = std::get_if<plan::MoeOp>(&operation)) {
      const auto first = want.modules.lower_bound(moe->module + ".");
      const bool wanted = first != want.modules.end() && first->starts_with(moe->module + ".");
      if (!wanted || moe->x.domain == plan::RowDomain::kDraftRows) continue;
      ATLAS_ASSIGN_OR_RETURN(const auto x, steps.read(program, moe->x, rows, stream));
      ATLAS_RETURN_IF_ERROR(look_experts(*moe, x));
    }
  }
}

Status Calibration::State::run_step(std::span<const TokenId> part, bool restart) {
  const auto rows = static_cast<uint32_t>(part.size());
  const StepRows step{0, part, rows, restart};
  const auto launch = [&](const plan::Bucket& bucket, Stream& stream) -> Status {
    ATLAS_ASSIGN_OR_RETURN(exec::StepWalk steps, model->walk(bucket));
    return look(steps, rows, stream);
  };
  const auto logits = stepper->run(plan::StepKind::kPrefill, {&step, 1}, launch);
  return logits ? Status() : logits.error();
}

Status Calibration::State::walk(const std::function<void(double)>& on_part) {
  for (size_t window = 0; window < ids.size(); window += options.window) {
    const size_t end = std::min(ids.size(), window + options.window);
    for (size_t begin = window; begin < end; begin += kStepRows) {
      const size_t count = std::min<size_t>(kStepRows, end - begin);
      ATLAS_RETURN_IF_ERROR(run_step(std::span(ids).subspan(begin, count), begin == window));
      if (on_part) on_part(static_cast<double>(begin + count) / static_cast<double>(ids.size()));
    }
  }
  return {};
}

Calibration::Calibration(std::unique_ptr<State> state) : state_(std::move(state)) {}
Calibration::~Calibration() = default;

Result<std::unique_ptr<Calibration>> Calibration::open(const CalibrationOptions& options,
                                                       const Source& source) {
  auto state = std::make_unique<State>();
  state->options = options;
  state->source = &source;
  ATLAS_ASSIGN_OR_RETURN(const std::string text, tools::read_text(options.text_file));
  tools::ModelOptions model;
  model.model = options.model;
  model.threads = options.threads;
  ATLAS_ASSIGN_OR_RETURN(
      settings::Settings settings,
      tools::tool_settings(
          model, {.sequences = 1, .sequence_tokens = options.window, .scored_rows = kStepRows}));
  settings.engine.graphs = false;  // a walk takes no graph
  ATLAS_ASSIGN_OR_RETURN(state->model, tools::LocalModel::open(settings, kStepRows));
  ATLAS_ASSIGN_OR_RETURN(state->stepper, state->model->stepper());
  ATLAS_ASSIGN_OR_RETURN(const auto tokenizer, state->model->tokenizer());
  state->ids = tokenizer->encode(text, {.parse_special = true, .add_bos_as_model_says = true});
  if (state->ids.size() < 2) {
    return invalid_argument("'{}' has {} tokens: too few to calibrate with", options.text_file,
                            state->ids.size());
  }
  if (state->ids.size() > options.tokens) state->ids.resize(options.tokens);
  return std::unique_ptr<Calibration>(new Calibration(std::move(state)));
}

void Calibration::expect(std::vector<std::string> modules) { state_->order = std::move(modules); }

Result<Moments> Calibration::moments(const std::string& module) {
  State& s = *state_;
  if (const auto place = s.ready.find(module); place != s.ready.end()) {
    Moments found = std::move(place->second);
    s.ready.erase(place);
    return found;
  }
  // As many of those that follow as the memory holds. Those that share are counted as if alone.
  s.ready.clear();
  s.sums.clear();
  s.layer_sums.clear();
  s.want.modules = {module};
  uint64_t bytes = 0;
  auto next = std::find(s.order.begin(), s.order.end(), module);
  for (; next != s.order.end(); ++next) {
    const uint64_t k = module_inputs(*s.source, *next);
    bytes += 2 * k * k * sizeof(float);  // sums, and of an expert those of all rows
    if (bytes > s.options.memory_bytes) break;
    s.want.modules.insert(*next);
  }
  if (on_walk) on_walk(s.want.modules.size());
  ATLAS_RETURN_IF_ERROR(s.walk(on_part));
  std::map<const Hessian*, Moments> done;  // sharers share the means too
  for (const std::string& name : s.want.modules) {
    const auto place = s.sums.find(name);
    if (place == s.sums.end() || place->second->rows() + s.layer_sums.size() == 0) continue;
    Moments& made = done[place->second.get()];
    if (made.mean == nullptr) {
      const size_t experts = name.find(".experts.");
      if (experts != name.npos) {
        const auto all = s.layer_sums.find(
            name.ends_with(".down_proj") ? name : name.substr(0, experts) + ".experts.");
        made = mix_moments(*place->second, *all->second);
      } else if (place->second->rows() > 0) {
        made = {std::make_shared<const Matrix>(place->second->mean()), "full",
                place->second->rows()};
      }
    }
    s.ready[name] = made;
  }
  s.sums.clear();
  s.layer_sums.clear();
  const auto place = s.ready.find(module);
  if (place == s.ready.end()) return Moments{};
  Moments found = std::move(place->second);
  s.ready.erase(place);
  return found;
}

}  // namespace atlas::quantize
