// Appends operations; every check of shapes is the planner's.
#include "daemon/plan/step_builder.h"

#include <algorithm>
#include <map>
#include <utility>

namespace atlas::plan {

Value Value::columns(uint64_t begin, uint64_t count) const {
  ATLAS_CHECK(begin + count <= width, "columns outside of a value");
  Value part = *this;
  part.first += begin;
  part.width = count;
  return part;
}

std::optional<Value> written_value(const Operation& operation) {
  return std::visit(
      [](const auto& op) -> std::optional<Value> {
        using Op = std::decay_t<decltype(op)>;
        // y is what an operation writes, but for the injection, which reads y and writes x.
        if constexpr (requires { op.y; } && !std::is_same_v<Op, StreamInjectOp>) {
          return op.y;
        } else if constexpr (requires { op.out; }) {
          return op.out;
        } else if constexpr (requires { op.u; }) {
          return op.u;
        } else if constexpr (requires { op.x; }) {
          return op.x;  // in place
        } else {
          return std::nullopt;
        }
      },
      operation);
}

std::string activation_buffer_name(const std::string& activation) {
  return "activation " + activation;
}

Value StepBuilder::activation(const std::string& name, uint64_t width, RowDomain domain) {
  for (uint32_t i = 0; i < program_.activations.size(); ++i) {
    const Activation& known = program_.activations[i];
    if (known.name != name) continue;
    ATLAS_CHECK(known.width == width && known.domain == domain, "one activation, two shapes");
    return Value{i, 0, width, width, domain};
  }
  program_.activations.push_back({name, width, domain});
  return Value{static_cast<uint32_t>(program_.activations.size() - 1), 0, width, width, domain};
}

void StepBuilder::add(const char* name, Operation operation) {
  program_.operations.push_back(
      {scope_.empty() ? std::string(name) : fmt::format("{}.{}", scope_, name),
       std::move(operation)});
}

void StepBuilder::rms_norm(Value x, VectorName weight, float epsilon, Value y) {
  const auto width = static_cast<uint32_t>(x.width);
  const Groups whole{1, width, width};
  add("rms_norm", RmsNormOp{x, std::move(weight), epsilon, y, whole, whole});
}
void StepBuilder::head_norm(Value x, Groups from, VectorName weight, float epsilon, Value y) {
  const Groups to{from.count, from.width, from.width};
  add("head_norm", RmsNormOp{x, std::move(weight), epsilon, y, from, to});
}
void StepBuilder::linear(Value x, std::vector<WeightName> weights, Value y) {
  add("linear", LinearOp{x, std::move(weights), y, false});
}
void StepBuilder::linear_add(Value x, WeightName weight, Value y) {
  add("linear_add", LinearOp{x, {std::move(weight)}, y, true});
}
void StepBuilder::sample(Value logits) {
  program_.vocab = static_cast<uint32_t>(logits.width);
  add("sample", SampleOp{logits});
}
void StepBuilder::draft_sample(Value logits) {
  add("draft_sample", DraftSampleOp{logits, program_.drafts++});
}

namespace {

/// The columns of activations that hold a norm's outputs, or gated means of these, while a
/// program's operations go by.
class NormedColumns {
 public:
  bool has(const Value& value) const {
    return std::any_of(columns_.begin(), columns_.end(), [&](const Value& one) {
      return one.activation == value.activation && one.first <= value.first &&
             value.first + value.width <= one.first + one.width;
    });
  }
  void pass(const Operation& operation) {
    const std::optional<Value> written = written_value(operation);
    if (!written) return;
    const bool normed = leaves_normed(operation);
    std::erase_if(columns_, [&](const Value& one) {
      return one.activation == written->activation && one.first < written->first + written->width &&
             written->first < one.first + one.width;
    });
    if (normed) columns_.push_back(*written);
  }

 private:
  bool leaves_normed(const Operation& operation) const {
    if (std::holds_alternative<RmsNormOp>(operation)) return true;
    if (const auto* mix = std::get_if<StreamMixOp>(&operation)) return has(mix->x);
    const auto* select = std::get_if<SelectRowsOp>(&operation);
    return select != nullptr && has(select->x);
  }

  std::vector<Value> columns_;
};

/// Marks the weights all of whose products take normed rows.
void mark_normed_rows(StepProgram& program) {
  NormedColumns normed;
  std::map<std::string, bool> by_module;
  for (NamedOperation& named : program.operations) {
    if (auto* linear = std::get_if<LinearOp>(&named.operation)) {
      for (const WeightName& weight : linear->weights) {
        const auto [known, first] = by_module.try_emplace(weight.module, true);
        known->second = known->second && normed.has(linear->x);
      }
    } else if (auto* experts = std::get_if<MoeOp>(&named.operation)) {
      experts->normed_rows = normed.has(experts->x);
    }
    normed.pass(named.operation);
  }
  const auto mark = [&](WeightName& weight) {
    const auto found = by_module.find(weight.module);
    weight.normed_rows = found != by_module.end() && found->second;
  };
  for (NamedOperation& named : program.operations) {
    if (auto* linear = std::get_if<LinearOp>(&named.operation)) {
      std::for_each(linear->weights.begin(), linear->weights.end(), mark);
    } else if (auto* embed = std::get_if<EmbedOp>(&named.operation)) {
      mark(embed->weight);  // the head's, too, perhaps
    }
  }
}

}  // namespace

StepProgram StepBuilder::take() && {
  mark_normed_rows(program_);
  return std::move(program_);
}

}  // namespace atlas::plan
