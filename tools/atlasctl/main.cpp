// atlasctl: drives a running atlasd over its Unix socket.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "tools/atlasctl/json_answer.h"
#include "tools/atlasctl/verbs.h"
#include "tools/common/unknown_command.h"

namespace {

using namespace atlas;
using namespace atlas::ctl;

void add_generate_options(CLI::App& verb, GenerateOptions& options) {
  verb.add_option("--model", options.model, "Model to ask; default: the one that is served");
  verb.add_option("--max-tokens", options.max_tokens, "Tokens of the answer, at most");
  verb.add_option("--temperature", options.temperature, "0: the likeliest token every time");
  verb.add_option("--top-p", options.top_p, "Sample from the likeliest tokens of this share");
  verb.add_option("--seed", options.seed, "The same seed gives the same answer");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program{"atlasctl: drives a running atlasd", "atlasctl"};
  program.require_subcommand(1);
  program.fallthrough();
  std::string socket = "/run/atlas/atlasd.sock";
  bool json = false;
  program.add_option("--socket", socket, "The daemon's Unix socket")->capture_default_str();
  program.add_flag("--json", json, "Print the daemon's answers, and errors, as JSON");
  program.set_version_flag("--version", std::string("atlasctl ") + ATLAS_VERSION);

  int code = 0;
  const auto context = [&] { return Context{Client(socket), json}; };
  std::vector<std::string> set;
  const auto add_set = [&set](CLI::App* verb) {
    verb->add_option("--set", set, "KEY=VALUE of the settings, VALUE in YAML")->take_all();
  };

  bool wait = false;
  CLI::App* status =
      program.add_subcommand("status", "State, model, device and memory of the daemon");
  CLI::Option* waits =
      status->add_flag("--wait", wait, "Wait until the model serves, and show the load's progress");
  uint32_t answer_timeout_s = 30;
  status
      ->add_option("--timeout", answer_timeout_s,
                   "Seconds that --wait gives the daemon to answer at all; a load may take longer")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->needs(waits);
  status->callback([&] {
    code = show_status(context(), wait ? std::optional(answer_timeout_s) : std::nullopt);
  });

  program.add_subcommand("models", "Models that are served")->callback([&] {
    code = show_models(context());
  });
  program.add_subcommand("plugins", "Plugins: loaded, skipped and refused, with reasons")
      ->callback([&] { code = show_plugins(context()); });
  program.add_subcommand("stats", "Counters since the start")->callback([&] {
    code = show_stats(context());
  });

  std::string model;
  bool records = false;
  CLI::App* plan =
      program.add_subcommand("plan", "Records, bytes and ledger of a model; nothing is loaded");
  plan->add_option("model", model, "A .gguf file or a folder; default: the served model");
  plan->add_flag("--records", records, "List every launch of every step");
  add_set(plan);
  plan->callback([&] { code = show_plan(context(), model, set, records); });

  bool dry_run = false;
  CLI::App* swap_verb =
      program.add_subcommand("swap", "Put another generation in place; says its class first");
  add_set(swap_verb);
  swap_verb->add_flag("--dry-run", dry_run, "Plan, audit and say the class only");
  swap_verb->callback([&] { code = swap(context(), set, dry_run); });

  program.add_subcommand("reload", "Read the settings file again")->callback([&] {
    code = reload(context());
  });

  std::optional<uint32_t> timeout_s;
  CLI::App* drain_verb =
      program.add_subcommand("drain", "Finish the requests at hand, then stop the daemon");
  drain_verb->add_option("--timeout", timeout_s, "Seconds that they may take");
  drain_verb->callback([&] { code = drain(context(), timeout_s); });

  GenerateOptions options;
  std::optional<std::string> question;
  CLI::App* chat_verb =
      program.add_subcommand("chat", "Talk with the model; without a prompt, line by line");
  chat_verb->add_option("prompt", question, "One question");
  chat_verb->add_option("--system", options.system, "The system message");
  add_generate_options(*chat_verb, options);
  chat_verb->callback([&] { code = chat(context(), question, options); });

  std::string prompt;
  CLI::App* complete_verb = program.add_subcommand("complete", "Continue a text");
  complete_verb->add_option("prompt", prompt, "The text")->required();
  add_generate_options(*complete_verb, options);
  complete_verb->callback([&] { code = complete(context(), prompt, options); });

  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Options are set only after a good parse, so the flag is looked for by hand.
    const bool wants_json = std::any_of(argv, argv + argc, [](const char* argument) {
      return std::string_view(argument) == "--json";
    });
    if (wants_json && error.get_exit_code() != 0) {
      fmt::print("{}\n", error_json(tools::usage_error(program, error), "usage"));
      return 2;
    }
    return tools::exit_after(program, error);
  }
  return code;
}
