#include "tools/common/command_line.h"

#include <fmt/format.h>

#include <cstdio>

#include "daemon/base/log.h"
#include "tools/common/unknown_command.h"

namespace atlas::tools {

void add_model_options(CLI::App& command, ModelOptions& options) {
  const char* group = "Model";
  command.add_option("--model", options.model, "A .gguf file, or a folder with config.json")
      ->required()
      ->type_name("PATH")
      ->group(group);
  command.add_option("--platform", options.platform, "Where it runs (default: cpu)")
      ->type_name("NAME")
      ->group(group);
  command.add_option("--threads", options.threads, "Threads of the platform cpu (default: all)")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->group(group);
  command.add_option("--config", options.config, "Settings to begin with, as atlasd reads them")
      ->type_name("FILE")
      ->group(group);
  command.add_option("--set", options.set, "A key of the settings, the value in YAML; repeatable")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->group(group);
}

void add_against_options(CLI::App& command, AgainstOptions& options) {
  auto* group = command.add_option_group(
      "Compared with", "What is other in the second: it begins as the first does");
  group->add_option("--against", options.model, "Another model")->type_name("PATH");
  group
      ->add_option("--against-config", options.config,
                   "Its settings, instead of --config and --set")
      ->type_name("FILE");
  group
      ->add_option("--against-set", options.set,
                   "A key of its settings, the value in YAML; repeatable")
      ->type_name("KEY=VALUE")
      ->take_all();
  group->require_option(1, 0);
}

CLI::Validator number_range(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        if (number && value >= low && value <= high) return std::string();
        return fmt::format("'{}' is no number from {} to {}", text, low, high);
      },
      "");
}

CLI::Validator accepted_by(std::function<Status(const std::string&)> check) {
  return CLI::Validator(
      [check = std::move(check)](std::string& text) { return std::string(check(text).message()); },
      "");
}

int exit_code(const std::string& program, const Status& status) {
  if (status.ok()) return 0;
  fmt::print(stderr, "{}: {}\n", program, status.message());
  return 1;
}

int parse_and_run(CLI::App& program, int argc, char** argv, const int& code) {
  configure_log(LogLevel::kWarning, LogStyle::kPlain);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return exit_after(program, error);
  }
  return code;
}

}  // namespace atlas::tools
