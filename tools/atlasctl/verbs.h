// What each verb of atlasctl does. Each returns the exit code: 0 good, 1 failed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/client.h"

namespace atlas::ctl {

using tools::Client;
using tools::Response;

struct Context {
  Client client;
  bool json = false;  // print what the daemon answered, as it is
};

struct GenerateOptions {
  std::string model;  // empty: the one that is served
  std::optional<uint32_t> max_tokens;
  std::optional<double> temperature, top_p;
  std::optional<uint64_t> seed;
  std::string system;
};

/// `wait_s`: waits until the model serves, and as many seconds at most for the daemon's first
/// answer.
int show_status(const Context& context, std::optional<uint32_t> wait_s);
int show_models(const Context& context);
int show_plugins(const Context& context);
int show_plan(const Context& context, const std::string& model, const std::vector<std::string>& set,
              bool records);
int show_stats(const Context& context);
/// `set`: KEY=VALUE. Says the class first (a dry run), then swaps unless `dry_run`.
int swap(const Context& context, const std::vector<std::string>& set, bool dry_run);
int reload(const Context& context);
int drain(const Context& context, std::optional<uint32_t> timeout_s);
/// Without a prompt: a conversation, line by line from standard input.
int chat(const Context& context, const std::optional<std::string>& prompt,
         const GenerateOptions& options);
int complete(const Context& context, const std::string& prompt, const GenerateOptions& options);

}  // namespace atlas::ctl
