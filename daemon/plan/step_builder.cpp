// Appends operations; every check of shapes is the planner's.
#include "daemon/plan/step_builder.h"

namespace atlas::plan {

Value Value::columns(uint64_t begin, uint64_t count) const {
  ATLAS_CHECK(begin + count <= width, "columns outside of a value");
  Value part = *this;
  part.first += begin;
  part.width = count;
  return part;
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

void StepBuilder::append(const char* name, Operation operation) {
  program_.operations.push_back(
      {scope_.empty() ? std::string(name) : fmt::format("{}.{}", scope_, name),
       std::move(operation)});
}

void StepBuilder::embed(WeightName weight, Value y) {
  append("embed", EmbedOp{std::move(weight), y});
}
void StepBuilder::rms_norm(Value x, VectorName weight, float epsilon, Value y) {
  append("rms_norm", RmsNormOp{x, std::move(weight), epsilon, y});
}
void StepBuilder::linear(Value x, std::vector<WeightName> weights, Value y) {
  append("linear", LinearOp{x, std::move(weights), y, false});
}
void StepBuilder::linear_add(Value x, WeightName weight, Value y) {
  append("linear_add", LinearOp{x, {std::move(weight)}, y, true});
}
void StepBuilder::add_bias(VectorName bias, Value y) {
  append("add_bias", AddBiasOp{std::move(bias), y});
}
void StepBuilder::rope(RopeOp rope) { append("rope", std::move(rope)); }
void StepBuilder::attention(AttentionOp attention) { append("attention", std::move(attention)); }
void StepBuilder::silu_mul(Value x, Value y) { append("silu_mul", SiluMulOp{x, y}); }
void StepBuilder::select_logit_rows(Value x, Value y) {
  append("select_logit_rows", SelectLogitRowsOp{x, y});
}
void StepBuilder::sample(Value logits) {
  program_.vocab = static_cast<uint32_t>(logits.width);
  append("sample", SampleOp{logits});
}

}  // namespace atlas::plan
