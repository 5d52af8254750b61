// The model programs `qwen3`, `qwen3_moe`, `qwen3_next`, `qwen3_5` and `qwen3_5_moe`: one residual
// stream, a norm before each block, attention or Gated DeltaNet as the layer's type says.
#pragma once

#include "daemon/model/checkpoint/model_config.h"
#include "daemon/plan/step_builder.h"

namespace atlas::model {

plan::StepProgram qwen3_program(const ModelConfig& config, uint32_t drafts);

}  // namespace atlas::model
