// The model program `qwen4_exp` (Qwen3.8-Flash-Next): gated residual streams, Gated DeltaNet and
// sparse attention, a mixture of experts in every layer, hashed n-gram embeddings before one layer,
// and a draft head.
#pragma once

#include "daemon/model/checkpoint/model_config.h"
#include "daemon/plan/step_builder.h"

namespace atlas::model {

/// `drafts`: tokens that the draft head proposes after each sampled one; 0 leaves it out.
plan::StepProgram qwen4_exp_program(const ModelConfig& config, uint32_t drafts);

}  // namespace atlas::model
