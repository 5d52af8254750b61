#include "daemon/model/programs/programs.h"

#include <string_view>

#include "daemon/model/programs/llama.h"

namespace atlas::model {

namespace {

struct Program {
  std::string_view architecture;
  plan::StepProgram (*make)(const ModelConfig&);
};

constexpr Program kPrograms[] = {{"llama", llama_program}};

}  // namespace

Result<plan::StepProgram> model_program(const ModelConfig& config) {
  std::string known;
  for (const Program& program : kPrograms) {
    if (program.architecture == config.architecture) return program.make(config);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", program.architecture);
  }
  return unimplemented("architecture '{}' has no model program; there are: {}", config.architecture,
                       known);
}

}  // namespace atlas::model
