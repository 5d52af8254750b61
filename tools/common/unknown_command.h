// What a program says of a command that it does not have.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace atlas::tools {

/// "no command 'needles'; is 'needle' meant?" if that is why `program` could not parse its
/// arguments; else what `error` says.
std::string usage_error(const CLI::App& program, const CLI::ParseError& error);

/// Prints help, version or usage_error(), as `error` asks. The exit code: 0, or 2 for wrong usage.
int exit_after(const CLI::App& program, const CLI::ParseError& error);

}  // namespace atlas::tools
