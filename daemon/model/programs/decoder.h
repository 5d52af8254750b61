// The model programs of decoders with one residual stream and a norm before each block: `llama`,
// `qwen3`, `qwen3_moe`, `qwen3_next`, `qwen3_5` and `qwen3_5_moe`. What differs between them is in
// the configuration: biases, norms of heads, output gates, Gated DeltaNet layers, experts.
#pragma once

#include "daemon/model/checkpoint/model_config.h"
#include "daemon/plan/step_builder.h"

namespace atlas::model {

/// What one step of the model computes. Source: the modules of transformers' classes of these
/// names, whose weight names it uses. There is no draft head: `drafts` is not looked at.
plan::StepProgram decoder_program(const ModelConfig& config, uint32_t drafts);

}  // namespace atlas::model
