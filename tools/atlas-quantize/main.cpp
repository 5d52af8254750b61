// atlas-quantize: makes a checkpoint in another weight format out of a model. Exit status: 0 good,
// 1 it failed, 2 wrong usage.
#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tools/atlas-quantize/job.h"
#include "tools/common/command_line.h"

namespace {

using namespace atlas;

/// Options that only some formats take, with those formats. Without a word about an option that
/// changes nothing, a user takes the result for what was asked.
struct FormatOption {
  const char* name;
  std::vector<quantize::Format> formats;
};
const std::vector<FormatOption>& format_options() {
  using enum quantize::Format;
  static const std::vector<FormatOption> options = {
      {"--bits", {kExl3}},        {"--head-bits", {kExl3}},
      {"--codebook", {kExl3}},    {"--seed", {kExl3}},
      {"--no-feedback", {kExl3}}, {"--calibration", {kExl3, kNvfp4}},
      {"--scales", {kNvfp4}},     {"--calibration-tokens", {kExl3, kNvfp4}},
  };
  return options;
}

Status check_format_options(const CLI::App& program, quantize::Format format) {
  for (const FormatOption& option : format_options()) {
    const auto& takers = option.formats;
    if (program.get_option(option.name)->count() == 0 ||
        std::find(takers.begin(), takers.end(), format) != takers.end()) {
      continue;
    }
    std::string names;
    for (const quantize::Format taker : takers) {
      names += (names.empty() ? "" : " and ") + quantize::format_name(taker);
    }
    return invalid_argument("{} has no use for {}: {} {}", quantize::format_name(format),
                            option.name, names, takers.size() == 1 ? "has" : "have");
  }
  return {};
}

/// What can be said of the command line alone.
Status check_usage(const CLI::App& program, quantize::JobOptions& options,
                   const std::string& format) {
  ATLAS_ASSIGN_OR_RETURN(options.format, quantize::parse_format(format));
  ATLAS_RETURN_IF_ERROR(check_format_options(program, options.format));
  ATLAS_ASSIGN_OR_RETURN(options.nvfp4_scales, quantize::nvfp4_scales(options.nvfp4_scales_name));
  ATLAS_ASSIGN_OR_RETURN(options.codebook, quantize::parse_codebook(options.codebook_name));
  ATLAS_RETURN_IF_ERROR(quantize::check_targets(options.bits));
  if (options.format == quantize::Format::kExl3 && options.error_feedback &&
      options.calibration.text_file.empty()) {
    return invalid_argument(
        "exl3 needs --calibration FILE, a text like those that the model will see; --no-feedback "
        "does without, and is worse");
  }
  return {};
}

Status run(const quantize::JobOptions& options, bool json) {
  ATLAS_ASSIGN_OR_RETURN(const quantize::Report report, quantize::run_job(options));
  std::fputs(json ? report.json().c_str() : report.text().c_str(), stdout);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program{"Makes a checkpoint in another weight format out of a model", "atlas-quantize"};
  program.set_version_flag("--version", std::string("atlas-quantize ") + ATLAS_VERSION);
  quantize::JobOptions options;
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  std::string format;
  bool json = false;
  program.add_option("--model", options.model, "A .gguf file, or a folder with config.json")
      ->required()
      ->type_name("PATH");
  program.add_option("--out", options.out, "A new folder, or one to go on in")
      ->required()
      ->type_name("DIR");
  program.add_option("--format", format, "exl3, nvfp4, fp8 or bf16")->required()->type_name("NAME");
  program
      .add_option("--bits", options.bits.bits,
                  "exl3: bits of a weight on average, 1 to 8; fractions mix whole ones")
      ->capture_default_str()
      ->type_name("N");
  program
      .add_option("--head-bits", options.bits.head_bits, "exl3: of lm_head; 16 keeps it in bf16")
      ->capture_default_str()
      ->type_name("N");
  program.add_option("--codebook", options.codebook_name, "exl3: mul1, mcg or 3inst")
      ->capture_default_str()
      ->type_name("NAME");
  program.add_option("--seed", options.seed, "exl3: of the random signs")
      ->capture_default_str()
      ->type_name("N");
  program
      .add_option("--calibration", options.calibration.text_file,
                  "exl3, and if you like nvfp4: the text that the inputs of the linears are "
                  "measured on")
      ->type_name("FILE");
  program
      .add_option("--calibration-tokens", options.calibration.tokens, "Of it, from its beginning")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(2u, 1u << 30));
  program.add_flag("!--no-feedback", options.error_feedback,
                   "exl3: round every tile by itself, without LDLQ");
  program
      .add_option("--evaluate", options.evaluation_text,
                  "A text for perplexity and KL against the source in the report")
      ->type_name("FILE");
  program.add_option("--evaluate-tokens", options.evaluation_tokens, "Of it, from its beginning")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(2u, 1u << 30));
  program
      .add_option("--scales", options.nvfp4_scales_name,
                  "How nvfp4 chooses scales: max, mse or four-over-six")
      ->capture_default_str()
      ->type_name("NAME");
  program.add_option("--threads", options.threads, "Threads (default: all)")
      ->type_name("N")
      ->check(CLI::Range(1u, 1024u));
  program.add_flag("--quiet", options.quiet, "No progress on standard error");
  program.add_flag("--json", json, "Write the report as JSON");
  int code = 0;
  program.callback([&] {
    const Status usage = check_usage(program, options, format);
    code = tools::exit_code("atlas-quantize", usage.ok() ? run(options, json) : usage);
    if (!usage.ok()) code = 2;
  });
  return tools::parse_and_run(program, argc, argv, code);
}
