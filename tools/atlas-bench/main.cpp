// atlas-bench: how fast it is: the engine in this process, a daemon over its socket, and what lies
// between the two. Exit status: 0 good, 1 it failed, 2 wrong usage.
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "tools/atlas-bench/engine_bench.h"
#include "tools/atlas-bench/kernel_bench.h"
#include "tools/atlas-bench/memory_report.h"
#include "tools/atlas-bench/overhead.h"
#include "tools/atlas-bench/socket_bench.h"
#include "tools/atlas-bench/step_bench.h"
#include "tools/atlas-bench/synthetic.h"
#include "tools/common/command_line.h"

namespace {

using namespace atlas;

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

/// Shapes of a released model instead of a checkpoint.
struct SyntheticOptions {
  std::string model;  // empty: a checkpoint
  std::string quant = "bf16";
};

/// A folder that goes when this does.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "atlas-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A model of the options, or a synthetic one in a folder that goes when this does; what is mapped
/// of it stays mapped.
struct ChosenModel {
  settings::Settings settings;
  tools::LocalModel::Weights weights;  // empty: the checkpoint's own
  std::optional<TemporaryFolder> folder;
};

Result<std::unique_ptr<ChosenModel>> choose_model(const tools::ModelOptions& options,
                                                  const SyntheticOptions& synthetic,
                                                  const tools::EngineNeeds& needs) {
  if (options.model.empty() == synthetic.model.empty()) {
    return invalid_argument("give either --model or --synthetic");
  }
  auto chosen = std::make_unique<ChosenModel>();
  tools::ModelOptions used = options;
  if (!synthetic.model.empty()) {
    chosen->folder.emplace();
    if (chosen->folder->path().empty()) {
      return invalid_argument("there is no place for a file of holes in '{}'",
                              std::filesystem::temp_directory_path().string());
    }
    ATLAS_RETURN_IF_ERROR(bench::write_synthetic_checkpoint(synthetic.model, synthetic.quant,
                                                            chosen->folder->path()));
    used.model = chosen->folder->path();
    chosen->weights = bench::synthetic_weights;
  }
  ATLAS_ASSIGN_OR_RETURN(chosen->settings, tools::tool_settings(used, needs));
  if (chosen->folder) chosen->settings.model.name = synthetic.model + " " + synthetic.quant;
  return chosen;
}

/// Opened for requests of this size; prefill is never cut for the sake of latency, so that all
/// requests of a batch generate at the same time.
Result<std::unique_ptr<tools::LocalModel>> open_model(const tools::ModelOptions& options,
                                                      uint32_t batch, uint32_t tokens,
                                                      const SyntheticOptions& synthetic = {}) {
  tools::ModelOptions with_latency = options;
  with_latency.set.insert(with_latency.set.begin(), "engine.latency_bound_ms=60000");
  ATLAS_ASSIGN_OR_RETURN(
      const auto chosen,
      choose_model(with_latency, synthetic, {.sequences = batch, .sequence_tokens = tokens}));
  return tools::LocalModel::open(chosen->settings, app::kScoredRows, chosen->weights);
}

Status run_engine(const tools::ModelOptions& model_options, const SyntheticOptions& synthetic,
                  const bench::EngineBenchOptions& options, bool json) {
  const uint32_t batch = *std::max_element(options.batch.begin(), options.batch.end());
  const uint32_t prompt =
      *std::max_element(options.prompt_tokens.begin(), options.prompt_tokens.end());
  ATLAS_ASSIGN_OR_RETURN(const auto model,
                         open_model(model_options, batch, prompt + options.generate, synthetic));
  ATLAS_ASSIGN_OR_RETURN(const auto points, bench::bench_engine(*model, options));
  print(json ? bench::engine_json(points, *model, bench::this_machine())
             : bench::engine_text(points));
  return {};
}

Status run_steps(const tools::ModelOptions& model_options, const SyntheticOptions& synthetic,
                 const bench::StepBenchOptions& options, bool json) {
  uint32_t batch = 1, rows = 1;
  for (const uint32_t sequences : options.decode) batch = std::max(batch, sequences);
  for (const uint32_t count : options.prefill) rows = std::max(rows, count);
  ATLAS_ASSIGN_OR_RETURN(const auto model,
                         open_model(model_options, batch, options.context + rows, synthetic));
  ATLAS_ASSIGN_OR_RETURN(const auto profiles, bench::bench_steps(*model, options));
  print(json ? bench::steps_json(profiles, *model, bench::this_machine())
             : bench::steps_text(profiles));
  return {};
}

Status run_socket(const bench::SocketBenchOptions& options, bool json) {
  ATLAS_ASSIGN_OR_RETURN(const bench::SocketBench result, bench::bench_socket(options));
  print(json ? bench::socket_json(result, options, bench::this_machine())
             : bench::socket_text(result));
  if (result.failed == 0) return {};
  return result.first_failure.with_context(fmt::format("{} requests failed", result.failed));
}

Status run_overhead(const tools::ModelOptions& model_options, const bench::OverheadOptions& options,
                    bool json) {
  ATLAS_ASSIGN_OR_RETURN(const auto model,
                         open_model(model_options, 1, options.prompt_tokens + options.generate));
  ATLAS_ASSIGN_OR_RETURN(const bench::Overhead result, bench::measure_overhead(*model, options));
  print(json ? result.json(*model, bench::this_machine()) : result.text());
  return {};
}

struct MemoryOptions {
  uint32_t sequences = 1, context = 0;  // 0: what the model was made for
};

Status run_memory(const tools::ModelOptions& model_options, const SyntheticOptions& synthetic,
                  const MemoryOptions& options, bool json) {
  ATLAS_ASSIGN_OR_RETURN(const auto chosen, choose_model(model_options, synthetic,
                                                         {.sequences = options.sequences,
                                                          .sequence_tokens = options.context}));
  ATLAS_ASSIGN_OR_RETURN(const bench::MemoryReport report, bench::report_memory(chosen->settings));
  print(json ? bench::memory_json(report, bench::this_machine()) : bench::memory_text(report));
  return {};
}

/// What of the table is measured: without a choice all of it.
struct KernelChoice {
  std::vector<std::string> shapes;
  bool experts = false;
  uint32_t weights_mb = 320;
};

Status run_kernels(const tools::ModelOptions& model_options, const KernelChoice& choice,
                   bench::KernelBenchOptions& options, bool json) {
  for (const std::string& text : choice.shapes) {
    ATLAS_ASSIGN_OR_RETURN(options.shapes.emplace_back(), bench::parse_kernel_shape(text));
  }
  const bool all = choice.shapes.empty() && !choice.experts;
  if (all) options.shapes = bench::flash_next_products();
  if (all || choice.experts) options.shapes.push_back(bench::flash_next_experts());
  options.resident_bytes = uint64_t{choice.weights_mb} * 1000000;
  ATLAS_ASSIGN_OR_RETURN(const settings::Settings settings,
                         tools::tool_settings(model_options, {}));
  ATLAS_ASSIGN_OR_RETURN(const auto device, bench::KernelDevice::open(settings));
  if (!json) print(bench::kernels_heading(*device));
  const bench::KernelTable table =
      bench::bench_kernels(*device, options, [&](const bench::KernelFigure& figure) {
        if (json) return;
        print(bench::kernel_line(figure));
        std::fflush(stdout);  // a run that is cut short has shown what it has
      });
  if (json) print(bench::kernels_json(table, *device, bench::this_machine()));
  for (const bench::KernelSkip& skip : table.skipped) {
    if (json) break;
    print(fmt::format("no {} {}: {}\n", skip.shape.format, skip.shape.name(), skip.reason));
  }
  return table.failure;
}

/// A count from `low` to a million.
void add_count(CLI::App& command, const char* name, uint32_t& value, const char* about,
               uint32_t low = 1) {
  command.add_option(name, value, about)
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(low, 1000000u));
}

void add_counts(CLI::App& command, const char* name, std::vector<uint32_t>& values,
                const char* about) {
  command.add_option(name, values, about)
      ->capture_default_str()
      ->type_name("N,N,...")
      ->delimiter(',')
      ->check(CLI::Range(1u, 1000000u));
}

void add_synthetic_options(CLI::App& command, SyntheticOptions& options) {
  command.get_option("--model")->required(false);
  auto* shapes =
      command
          .add_option(
              "--synthetic", options.model,
              "Instead of a model, the shapes of one with drawn weights: qwen3.8-flash-next")
          ->type_name("NAME")
          ->check(tools::accepted_by(&bench::check_model))
          ->excludes(command.get_option("--model"));
  command
      .add_option("--quant", options.quant,
                  "The format of drawn weights: bf16, fp8, nvfp4, exl3:BITS; a model has its own")
      ->capture_default_str()
      ->type_name("FORMAT")
      ->check(tools::accepted_by(&bench::check_model_quant))
      ->needs(shapes);
}

Status check_shape(const std::string& text) {
  const auto shape = bench::parse_kernel_shape(text);
  return shape ? Status() : shape.error();
}

void add_kernel_options(CLI::App& command, bench::KernelBenchOptions& options,
                        KernelChoice& choice) {
  command.remove_option(command.get_option("--model"));
  command.add_option("--formats", options.formats, "Of the weights: exl3:BITS, nvfp4, fp8, bf16")
      ->capture_default_str()
      ->type_name("FORMAT,...")
      ->delimiter(',')
      ->check(tools::accepted_by(&bench::check_matrix_quant));
  command
      .add_option(
          "--shapes", choice.shapes,
          "Products of K inputs and N outputs, or layers as 10of512:2560x640 (default: those "
          "of Qwen3.8-Flash-Next)")
      ->type_name("KxN,...")
      ->delimiter(',')
      ->check(tools::accepted_by(&check_shape));
  command.add_flag("--experts", choice.experts, "Its layer of experts: alone, or beside --shapes");
  command.add_option("--rows", options.rows, "Rows (default: 1 to 16384; of experts to 4096)")
      ->type_name("N,N,...")
      ->delimiter(',')
      ->check(CLI::Range(1u, 65536u));
  add_count(command, "--weights-mb", choice.weights_mb,
            "Megabytes of a product's copies together, more than a cache holds");
  command.add_option("--ms", options.ms, "Milliseconds that a figure is measured for, about")
      ->capture_default_str()
      ->type_name("MS")
      ->check(tools::number_range(0.01, 10000));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program{"Measures how fast Atlas is", "atlas-bench"};
  program.require_subcommand(1);
  program.set_version_flag("--version", std::string("atlas-bench ") + ATLAS_VERSION);
  int code = 0;
  bool json = false;
  tools::ModelOptions model;
  SyntheticOptions synthetic;
  bench::EngineBenchOptions engine;
  bench::StepBenchOptions steps;
  bench::SocketBenchOptions socket;
  bench::OverheadOptions overhead;
  bench::KernelBenchOptions kernels;
  KernelChoice kernel_choice;
  MemoryOptions memory;
  const auto finish = [&code](const Status& status) {
    code = tools::exit_code("atlas-bench", status);
  };

  CLI::App* engine_command = program.add_subcommand(
      "engine", "Prefill and decode tokens a second, in process, by batch and length");
  tools::add_model_options(*engine_command, model);
  add_synthetic_options(*engine_command, synthetic);
  add_counts(*engine_command, "--prompt-tokens", engine.prompt_tokens, "Lengths of prompts");
  add_counts(*engine_command, "--batch", engine.batch, "Requests at once");
  add_count(*engine_command, "--generate", engine.generate, "Tokens of an answer", 4);
  add_count(*engine_command, "--repeat", engine.repeat, "Runs that the medians are of");
  engine_command->callback([&] { finish(run_engine(model, synthetic, engine, json)); });

  CLI::App* steps_command = program.add_subcommand(
      "steps", "Where a step's time goes: each operation over all layers, timed by itself");
  tools::add_model_options(*steps_command, model);
  add_synthetic_options(*steps_command, synthetic);
  add_counts(*steps_command, "--decode", steps.decode, "Sequences of decode steps");
  add_counts(*steps_command, "--prefill", steps.prefill, "Rows of prefill steps");
  add_count(*steps_command, "--context", steps.context, "Positions before the step", 0);
  steps_command->callback([&] { finish(run_steps(model, synthetic, steps, json)); });

  CLI::App* kernels_command = program.add_subcommand(
      "kernels",
      "Single products and layers of experts, beside the least time that they could take");
  tools::add_model_options(*kernels_command, model);
  add_kernel_options(*kernels_command, kernels, kernel_choice);
  kernels_command->callback([&] { finish(run_kernels(model, kernel_choice, kernels, json)); });

  CLI::App* memory_command = program.add_subcommand(
      "memory", "What a model would take of a platform's memory, without a device");
  tools::add_model_options(*memory_command, model);
  add_synthetic_options(*memory_command, synthetic);
  add_count(*memory_command, "--sequences", memory.sequences, "Sequences live at once");
  add_count(*memory_command, "--context", memory.context,
            "Positions of the longest; 0: what the model was made for", 0);
  memory_command->callback([&] { finish(run_memory(model, synthetic, memory, json)); });

  CLI::App* socket_command = program.add_subcommand(
      "socket", "Time to the first token and between tokens, over a daemon's socket");
  socket_command->add_option("--socket", socket.socket, "The daemon's Unix socket")
      ->capture_default_str()
      ->type_name("PATH");
  add_count(*socket_command, "--clients", socket.clients, "Clients at once");
  add_count(*socket_command, "--requests", socket.requests, "Requests of all clients together");
  add_count(*socket_command, "--prompt-tokens", socket.prompt_tokens, "Tokens of a prompt");
  add_count(*socket_command, "--max-tokens", socket.max_tokens, "Tokens of an answer");
  socket_command
      ->add_option("--pid", socket.pid,
                   "The daemon's process (default: who listens; behind "
                   "socket activation that is not the daemon)")
      ->type_name("PID")
      ->check(CLI::PositiveNumber);
  socket_command->callback([&] { finish(run_socket(socket, json)); });

  CLI::App* overhead_command = program.add_subcommand(
      "overhead", "Time that server, socket and SSE add to a token, beside the engine in process");
  tools::add_model_options(*overhead_command, model);
  overhead_command->add_option("--socket", overhead.socket, "The daemon's Unix socket")
      ->capture_default_str()
      ->type_name("PATH");
  add_count(*overhead_command, "--prompt-tokens", overhead.prompt_tokens, "Tokens of a prompt");
  add_count(*overhead_command, "--generate", overhead.generate, "Tokens of an answer", 4);
  add_count(*overhead_command, "--repeat", overhead.repeat, "Pairs of runs");
  overhead_command->callback([&] { finish(run_overhead(model, overhead, json)); });

  for (CLI::App* command : {engine_command, steps_command, kernels_command, memory_command,
                            socket_command, overhead_command}) {
    command->add_flag("--json", json, "Write JSON");
  }
  return tools::parse_and_run(program, argc, argv, code);
}
