// The model program `llama`: a decoder of attention and gated MLP blocks on one residual stream.
#pragma once

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/model_config.h"
#include "daemon/plan/step_builder.h"

namespace atlas::model {

/// What one step of the model computes. Covers Llama 2 and 3, SmolLM2 and their likes: grouped
/// queries, rotary positions of any frequencies, tied or untied head, biases where the config has
/// them. Source: the modules of transformers' `LlamaForCausalLM`, whose weight names it uses.
plan::StepProgram llama_program(const ModelConfig& config, uint32_t drafts);

}  // namespace atlas::model
