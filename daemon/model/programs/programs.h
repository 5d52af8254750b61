// The table of model programs by architecture.
#pragma once

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/model_config.h"
#include "daemon/plan/step_builder.h"

namespace atlas::model {

/// The program of `config.architecture`, with `drafts` proposals of its draft head after each token
/// (0 to 7; none where there is no such head). kUnimplemented names the architectures there are.
Result<plan::StepProgram> model_program(const ModelConfig& config, uint32_t drafts);

}  // namespace atlas::model
