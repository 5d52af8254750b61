// Products that end in the operation behind them, by their plugins' own records.
#include "daemon/plan/step_lowering.h"

namespace atlas::plan {

/// While it lives, records belong to the operation behind the present one, whose output is there
/// when they have run.
class StepLowering::EndedAt {
 public:
  EndedAt(StepLowering& step, const NamedOperation& next) : step_(step), name_(step.name_) {
    step_.name_ = next.name;
    ++step_.index_;
  }
  EndedAt(const EndedAt&) = delete;
  EndedAt& operator=(const EndedAt&) = delete;
  ~EndedAt() {
    step_.name_ = name_;
    --step_.index_;
  }

 private:
  StepLowering& step_;
  std::string name_;
};

std::optional<Value> StepLowering::epilogue_of(const Value& y, const Operation& next,
                                               AtlasLinearProblem& problem) {
  if (const auto* silu = std::get_if<SiluOp>(&next)) {
    const Value& made = silu->y;
    if (!same_columns(silu->x, made) || made.activation != y.activation || made.first != y.first ||
        made.width > y.width || made.stride != y.stride) {
      return std::nullopt;
    }
    problem.epilogue = ATLAS_EPILOGUE_SILU;
    problem.columns = static_cast<uint32_t>(made.width);
    problem.scale = silu->scale;
    return made;
  }
  const auto* mix = std::get_if<StreamMixOp>(&next);
  if (mix == nullptr || !same_columns(mix->gate, y) || mix->u.domain != y.domain ||
      mix->u.activation == mix->x.activation || mix->u.width * mix->streams != y.width) {
    return std::nullopt;
  }
  problem.epilogue = ATLAS_EPILOGUE_STREAM_MEAN;
  problem.columns = static_cast<uint32_t>(mix->u.width);
  problem.streams = at(mix->x);
  problem.streams_stride = mix->x.stride;
  problem.y = at(mix->u);
  problem.y_stride = mix->u.stride;
  return mix->u;
}

Result<bool> StepLowering::linear_ending(const LinearOp& op, const NamedOperation& next) {
  if (!gpu_ || op.add || op.x.activation == op.y.activation) return false;
  ATLAS_ASSIGN_OR_RETURN(const auto placed, builder_.place(op.weights));
  const Weight& weight = builder_.plan.weights[placed.front().weight];
  if (placed.size() != 1 || weight.n != op.y.width || weight.k != op.x.width) return false;
  const Rows x = rows(op.x);
  AtlasLinearProblem problem = linear_problem(x, weight, rows(op.y));
  const std::optional<Value> made = epilogue_of(op.y, next.operation, problem);
  if (!made) return false;
  const std::string context = fmt::format("plugin '{}', product", weight.plugin);
  AtlasLinearNeeds needed{};
  needed.struct_size = sizeof(needed);
  ATLAS_RETURN_IF_ERROR(
      abi::call(context, builder_.quant(weight.plugin).api->linear_needs, &problem, &needed));
  if ((needed.fused_epilogues & 1u << problem.epilogue) == 0) return false;
  const EndedAt ended(*this, next);
  ATLAS_ASSIGN_OR_RETURN(problem.x, encoded(x, needed, weight.plugin));
  if (needed.workspace_bytes != 0) problem.workspace = scratch("workspace", needed.workspace_bytes);
  owner_ = weight.plugin;
  ATLAS_RETURN_IF_ERROR(
      abi::call(context, builder_.quant(weight.plugin).api->plan_linear, &problem, &sink_));
  written(op.y);
  if (made->activation != op.y.activation) written(*made);
  if (needed.encoded_offset != 0 || needed.encoded_f16_offset != 0) {
    can_encode(rows(*made), needed.encoded_offset, needed.encoded_f16_offset);
  }
  return true;
}

}  // namespace atlas::plan
