// What the tools' command lines have in common: options that choose models, and how they end.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "tools/common/local_model.h"

namespace atlas::tools {

/// --model, --config, --platform, --threads and --set.
void add_model_options(CLI::App& command, ModelOptions& options);

/// --against, --against-config and --against-set: a second model, beside add_model_options.
void add_against_options(CLI::App& command, AgainstOptions& options);

/// A number from `low` to `high`. Other than CLI11's own checks it refuses NaN.
CLI::Validator number_range(double low, double high);

/// What `check` says of a value: an error is wrong usage.
CLI::Validator accepted_by(std::function<Status(const std::string&)> check);

/// Prints "PROGRAM: message" on standard error if `status` is an error. The exit code: 0, or 1.
int exit_code(const std::string& program, const Status& status);

/// Parses, runs what the subcommands' callbacks run, and returns the exit code: 2 for wrong usage.
int parse_and_run(CLI::App& program, int argc, char** argv, const int& code);

}  // namespace atlas::tools
