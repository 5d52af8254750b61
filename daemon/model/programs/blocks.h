// Blocks that several model programs are made of: gated attention, Gated DeltaNet, plain and
// mixture-of-experts MLPs. Each says what it computes from `u`, its normed input, to `y`.
#pragma once

#include <string>

#include "daemon/model/checkpoint/model_config.h"
#include "daemon/plan/step_builder.h"

namespace atlas::model {

/// The activations of one set of rows: those of the step, or the draft head's.
class Rows {
 public:
  Rows(plan::StepBuilder& step, plan::RowDomain domain) : step_(step), domain_(domain) {}
  /// `width` columns a row; one name is one activation.
  plan::Value value(const std::string& name, uint64_t width) const;
  plan::RowDomain domain() const { return domain_; }

 private:
  plan::StepBuilder& step_;
  plan::RowDomain domain_;
};

/// The gain of a norm: the tensor itself, or 1 + the tensor where the model stores it around zero.
plan::VectorName norm_gain(const ModelConfig& c, const std::string& tensor, uint64_t n);

/// Where a block's output goes: it becomes `y`, or is added to it.
struct Output {
  plan::Value y;
  bool add = false;
};

/// Attention from u [m, hidden] to the output [m, hidden]: projections, norms of heads, rotation,
/// `backend` (sparse with an indexer), output gate, output projection. `layer` numbers its state.
void attention_block(plan::StepBuilder& step, const ModelConfig& c, const Rows& rows,
                     const std::string& module, uint32_t layer, plan::Value u, Output out);

/// Gated DeltaNet from u to the output: projections, convolution and recurrence, gated norm of
/// heads, output projection.
void delta_block(plan::StepBuilder& step, const ModelConfig& c, const Rows& rows,
                 const std::string& module, uint32_t layer, plan::Value u, Output out);

/// MLP from u to the output, by experts if layer `layer` has them.
void mlp_block(plan::StepBuilder& step, const ModelConfig& c, const Rows& rows,
               const std::string& module, bool experts, plan::Value u, Output out);

}  // namespace atlas::model
