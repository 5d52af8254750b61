#include "tools/common/unknown_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "daemon/base/nearest_name.h"

namespace atlas::tools {

std::string usage_error(const CLI::App& program, const CLI::ParseError& error) {
  // The parser asks for a command before it looks at words that it could not place.
  if (error.get_name() != "RequiredError" || !program.get_subcommands().empty()) {
    return error.what();
  }
  const std::vector<std::string> unplaced = program.remaining();
  if (unplaced.empty() || unplaced.front().starts_with('-')) return error.what();
  const std::string& asked = unplaced.front();
  const std::vector<const CLI::App*> commands = program.get_subcommands({});
  std::vector<std::string_view> names;
  std::string all;
  for (const CLI::App* command : commands) {
    names.push_back(command->get_name());
    all += (all.empty() ? "" : ", ") + command->get_name();
  }
  const std::string_view nearest = nearest_name(asked, names);
  if (!nearest.empty()) return fmt::format("no command '{}'; is '{}' meant?", asked, nearest);
  return fmt::format("no command '{}': there are {}", asked, all);
}

int exit_after(const CLI::App& program, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return program.exit(error);
  fmt::print(stderr, "{}\nRun with --help for more information.\n", usage_error(program, error));
  return 2;
}

}  // namespace atlas::tools
