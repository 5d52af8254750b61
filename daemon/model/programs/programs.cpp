#include "daemon/model/programs/programs.h"

#include <string_view>

#include "daemon/model/programs/decoder.h"
#include "daemon/model/programs/qwen4_exp.h"

namespace atlas::model {

namespace {

struct Program {
  std::string_view architecture;
  plan::StepProgram (*make)(const ModelConfig&, uint32_t drafts);
};

constexpr Program kPrograms[] = {
    {"llama", decoder_program},       {"qwen3", decoder_program},
    {"qwen3_moe", decoder_program},   {"qwen3_next", decoder_program},
    {"qwen3_5", decoder_program},     {"qwen3_5_moe", decoder_program},
    {"qwen4_exp", qwen4_exp_program},
};

}  // namespace

Result<plan::StepProgram> model_program(const ModelConfig& config, uint32_t drafts) {
  std::string known;
  for (const Program& program : kPrograms) {
    if (program.architecture == config.architecture)
      return program.make(config, config.draft_head ? drafts : 0);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", program.architecture);
  }
  return unimplemented("architecture '{}' has no model program; there are: {}", config.architecture,
                       known);
}

}  // namespace atlas::model
