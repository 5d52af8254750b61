// atlas-eval: what a model computes: perplexity, raw logits, greedy ids, retrieval, what each
// operation writes, how far two models lie apart, and whether the bits stay the same however they
// are computed. Exit status: 0 good, 1 it failed or bits differ, 2 wrong usage.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

#include "daemon/model/tokenizer/tokenizer.h"
#include "tools/atlas-eval/divergence.h"
#include "tools/atlas-eval/dump.h"
#include "tools/atlas-eval/first_divergence.h"
#include "tools/atlas-eval/generate.h"
#include "tools/atlas-eval/identity.h"
#include "tools/atlas-eval/logits.h"
#include "tools/atlas-eval/needle.h"
#include "tools/atlas-eval/perplexity.h"
#include "tools/common/command_line.h"
#include "tools/common/files.h"
#include "tools/common/json.h"

namespace {

using namespace atlas;
using engine::TokenId;
using tools::EngineNeeds;
using tools::LocalModel;
using tools::ModelOptions;

/// Everything that the subcommands' options say.
struct Arguments {
  ModelOptions model;
  tools::AgainstOptions against;
  bool json = false;
  std::string text_file, ids_file, out_file, needle_file, prompt;
  uint32_t window = 2048, chunk = 64, max_tokens = 64, limit = 0, worst = 5;
  uint64_t tokens = 0;
  std::optional<uint32_t> layer;
  double seconds = 300, tolerance = 0;
  bool ignore_eos = false;
};

/// Ids are checked against the vocabulary once the model is there.
constexpr uint32_t kAnyVocabulary = ~0u;
/// Rows of a step that gives all logits: more gain nothing, and logits take memory.
constexpr uint32_t kPerplexityRows = 128;
/// Needles that are answered together: decode steps of several rows read the weights once.
constexpr uint32_t kNeedlesAtOnce = 8;

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

Result<std::unique_ptr<LocalModel>> open_model(const ModelOptions& options,
                                               const EngineNeeds& needs) {
  ATLAS_ASSIGN_OR_RETURN(const settings::Settings settings, tools::tool_settings(options, needs));
  return LocalModel::open(settings, needs.scored_rows);
}

Status run_perplexity(const Arguments& arguments) {
  ATLAS_ASSIGN_OR_RETURN(const std::string text, tools::read_text(arguments.text_file));
  ATLAS_ASSIGN_OR_RETURN(
      const auto model,
      open_model(arguments.model, {.sequences = 1,
                                   .sequence_tokens = arguments.window,
                                   .scored_rows = std::min(arguments.window, kPerplexityRows)}));
  ATLAS_ASSIGN_OR_RETURN(const eval::Perplexity result,
                         eval::perplexity(*model, text, arguments.window));
  print(arguments.json ? result.json(*model) : result.text());
  return {};
}

Status run_logits(const Arguments& arguments) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                         tools::read_ids(arguments.ids_file, kAnyVocabulary));
  const auto tokens = static_cast<uint32_t>(ids.size());
  ATLAS_ASSIGN_OR_RETURN(
      const auto model,
      open_model(arguments.model, {.sequences = 1,
                                   .sequence_tokens = tokens,
                                   .scored_rows = std::min(arguments.chunk, tokens)}));
  ATLAS_RETURN_IF_ERROR(eval::write_logits(*model, ids, arguments.out_file, arguments.chunk));
  if (arguments.json) {
    print(tools::json_text({{"model", model->info().id},
                            {"tokens", tokens},
                            {"vocab", model->info().vocab},
                            {"dtype", "float32"},
                            {"file", arguments.out_file}}));
  }
  return {};
}

Status run_generate(const Arguments& arguments) {
  const bool from_text = arguments.ids_file.empty();
  std::vector<TokenId> ids;
  if (!from_text) {
    ATLAS_ASSIGN_OR_RETURN(ids, tools::read_ids(arguments.ids_file, kAnyVocabulary));
  }
  // A token has at least one byte, and a text at most one token in front.
  const uint64_t prompt = from_text ? arguments.prompt.size() + 1 : ids.size();
  const auto tokens = static_cast<uint32_t>(
      std::min<uint64_t>(prompt + arguments.max_tokens, std::numeric_limits<int32_t>::max()));
  ATLAS_ASSIGN_OR_RETURN(const auto model,
                         open_model(arguments.model, {.sequences = 1, .sequence_tokens = tokens}));
  if (from_text) {
    ATLAS_ASSIGN_OR_RETURN(const auto tokenizer, model->tokenizer());
    ids =
        tokenizer->encode(arguments.prompt, {.parse_special = true, .add_bos_as_model_says = true});
  }
  ATLAS_ASSIGN_OR_RETURN(const eval::Generated result,
                         eval::generate(*model, ids, arguments.max_tokens, arguments.ignore_eos));
  if (arguments.json) {
    print(result.json(*model));
  } else {
    print((from_text ? result.text : tools::ids_json(result.ids)) + "\n");
  }
  return {};
}

Status run_needle(const Arguments& arguments) {
  ATLAS_ASSIGN_OR_RETURN(const std::string text, tools::read_text(arguments.needle_file));
  ATLAS_ASSIGN_OR_RETURN(std::vector<eval::Needle> needles,
                         eval::parse_needles(text, arguments.needle_file));
  if (arguments.limit != 0 && needles.size() > arguments.limit) needles.resize(arguments.limit);
  // The tokenizer first: the longest prompt decides how the model is opened.
  ATLAS_ASSIGN_OR_RETURN(const auto tokenizer, tools::model_tokenizer(arguments.model));
  const auto encoded = eval::encode_needles(needles, *tokenizer);
  size_t longest = 0;
  for (const eval::EncodedNeedle& one : encoded) longest = std::max(longest, one.ids.size());
  const uint32_t at_once = std::min(kNeedlesAtOnce, static_cast<uint32_t>(encoded.size()));
  const auto tokens = static_cast<uint32_t>(
      std::min<uint64_t>(longest + arguments.max_tokens, std::numeric_limits<int32_t>::max()));
  ATLAS_ASSIGN_OR_RETURN(
      const auto model,
      open_model(arguments.model, {.sequences = at_once, .sequence_tokens = tokens}));
  ATLAS_ASSIGN_OR_RETURN(const eval::NeedleScore score,
                         eval::answer_needles(*model, encoded, arguments.max_tokens, at_once));
  print(arguments.json ? score.json(*model) : score.text());
  return {};
}

Status run_kl(const Arguments& arguments) {
  ATLAS_ASSIGN_OR_RETURN(const std::string text, tools::read_text(arguments.text_file));
  const EngineNeeds needs{.sequences = 1,
                          .sequence_tokens = arguments.window,
                          .scored_rows = std::min(arguments.window, kPerplexityRows)};
  ATLAS_ASSIGN_OR_RETURN(const auto first, open_model(arguments.model, needs));
  ATLAS_ASSIGN_OR_RETURN(const auto second,
                         open_model(tools::against(arguments.model, arguments.against), needs));
  ATLAS_ASSIGN_OR_RETURN(
      const eval::Divergence result,
      eval::divergence(*first, *second, text, arguments.window, arguments.tokens));
  print(arguments.json ? result.json(*first, *second, arguments.worst)
                       : result.text(arguments.worst));
  return {};
}

Result<std::unique_ptr<eval::Tracer>> open_tracer(const ModelOptions& options, uint32_t tokens) {
  ATLAS_ASSIGN_OR_RETURN(const settings::Settings settings,
                         tools::tool_settings(options, eval::Tracer::needs(tokens)));
  return eval::Tracer::open(settings, tokens);
}

Status run_dump(const Arguments& arguments) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                         tools::read_ids(arguments.ids_file, kAnyVocabulary));
  ATLAS_ASSIGN_OR_RETURN(const auto tracer,
                         open_tracer(arguments.model, static_cast<uint32_t>(ids.size())));
  ATLAS_ASSIGN_OR_RETURN(const eval::Dump dump,
                         eval::write_dump(*tracer, ids, arguments.out_file, arguments.layer));
  print(arguments.json ? tools::json_text({{"folder", arguments.out_file},
                                           {"tensors", dump.tensors},
                                           {"bytes", dump.bytes}})
                       : fmt::format("{} tensors, {} bytes in {}\n", dump.tensors, dump.bytes,
                                     arguments.out_file));
  return {};
}

Status run_first_divergence(const Arguments& arguments) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                         tools::read_ids(arguments.ids_file, kAnyVocabulary));
  const auto tokens = static_cast<uint32_t>(ids.size());
  ATLAS_ASSIGN_OR_RETURN(const auto first, open_tracer(arguments.model, tokens));
  ATLAS_ASSIGN_OR_RETURN(const auto second,
                         open_tracer(tools::against(arguments.model, arguments.against), tokens));
  ATLAS_ASSIGN_OR_RETURN(const eval::FirstDivergence result,
                         eval::first_divergence(*first, *second, ids, arguments.tolerance));
  print(arguments.json ? result.json(first->model(), second->model()) : result.text());
  if (!result.first) return {};
  return data_loss("the two differ from {} on", result.first->operation);
}

/// Threads are an option of the platform plugin cpu alone.
std::vector<uint32_t> thread_counts(const Arguments& arguments,
                                    const settings::Settings& settings) {
  const std::string& plugin = settings.platform.plugin;
  const bool cpu = plugin.empty() ? settings.platform.name == "cpu" : plugin == "cpu";
  if (!cpu) return {};
  return {1, arguments.model.threads > 1 ? arguments.model.threads : 2};
}

Status run_identity(const Arguments& arguments) {
  eval::IdentityOptions options;
  options.seconds = arguments.seconds;
  if (!arguments.ids_file.empty()) {
    ATLAS_ASSIGN_OR_RETURN(options.ids, tools::read_ids(arguments.ids_file, kAnyVocabulary));
  }
  if (!arguments.text_file.empty()) {
    ATLAS_ASSIGN_OR_RETURN(options.text, tools::read_text(arguments.text_file));
  }
  ATLAS_ASSIGN_OR_RETURN(
      const settings::Settings settings,
      tools::tool_settings(arguments.model, {.sequences = eval::kIdentitySlots,
                                             .sequence_tokens = eval::kIdentityTokens,
                                             .scored_rows = eval::kIdentityStepRows}));
  options.threads = thread_counts(arguments, settings);
  ATLAS_ASSIGN_OR_RETURN(const eval::Identity result, eval::compare_identity(settings, options));
  print(arguments.json ? result.json() : result.text());
  if (!result.identical()) return data_loss("the bits depend on how they are computed");
  if (result.complete()) return {};
  return deadline_exceeded("no difference, but {} of {} pairs were left out: give more --seconds",
                           result.pairs_of - result.pairs, result.pairs_of);
}

using Command = Status (*)(const Arguments&);

CLI::App& add_command(CLI::App& program, const char* name, const char* about, Command command,
                      Arguments& arguments, int& code) {
  CLI::App* sub = program.add_subcommand(name, about);
  tools::add_model_options(*sub, arguments.model);
  sub->add_flag("--json", arguments.json, "Write JSON");
  sub->callback(
      [command, &arguments, &code] { code = tools::exit_code("atlas-eval", command(arguments)); });
  return *sub;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program{"Evaluates a model in this process, without a daemon", "atlas-eval"};
  program.require_subcommand(1);
  program.set_version_flag("--version", std::string("atlas-eval ") + ATLAS_VERSION);
  Arguments arguments;
  int code = 0;

  CLI::App& perplexity =
      add_command(program, "perplexity", "Perplexity of a text, in consecutive windows",
                  &run_perplexity, arguments, code);
  perplexity.add_option("--text", arguments.text_file, "The text")->required()->type_name("FILE");
  perplexity
      .add_option("--window", arguments.window,
                  "Tokens of a window; each begins from an empty state")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(2u, 1u << 24));

  CLI::App& identity = add_command(
      program, "identity",
      "Compare the bits of all logits across threads, graph and eager, chunks and batches",
      &run_identity, arguments, code);
  auto* identity_ids =
      identity.add_option("--ids", arguments.ids_file, "A JSON list of token ids to use")
          ->type_name("FILE");
  identity.add_option("--text", arguments.text_file, "A text to use")
      ->type_name("FILE")
      ->excludes(identity_ids);
  identity.add_option("--seconds", arguments.seconds, "It ends within this time")
      ->capture_default_str()
      ->check(tools::number_range(0, 86400));

  CLI::App& logits = add_command(program, "logits", "Raw logits of all positions, into a file",
                                 &run_logits, arguments, code);
  logits.add_option("--ids", arguments.ids_file, "A JSON list of token ids")
      ->required()
      ->type_name("FILE");
  logits.add_option("--out", arguments.out_file, "Gets [tokens, vocab] as little-endian float32")
      ->required()
      ->type_name("FILE");
  logits
      .add_option("--chunk", arguments.chunk, "Rows of a step; 1: decode steps after the first row")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1u, 65536u));

  CLI::App& generate = add_command(program, "generate", "Greedy continuation, as a list of ids",
                                   &run_generate, arguments, code);
  auto* source = generate.add_option_group("prompt");
  source->add_option("--ids", arguments.ids_file, "A JSON list of token ids")->type_name("FILE");
  source->add_option("--prompt", arguments.prompt, "A text; the answer is a text too")
      ->type_name("TEXT");
  source->require_option(1);
  generate.add_option("--max-tokens", arguments.max_tokens, "Tokens of the answer, at most")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1u, 1u << 24));
  generate.add_flag("--ignore-eos", arguments.ignore_eos, "Go on after an end-of-generation token");

  CLI::App& kl = add_command(
      program, "kl", "How far apart two models' predictions are: KL divergence, top-1 agreement",
      &run_kl, arguments, code);
  tools::add_against_options(kl, arguments.against);
  kl.add_option("--text", arguments.text_file, "The text")->required()->type_name("FILE");
  kl.add_option("--window", arguments.window, "Tokens of a window; each begins from an empty state")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(2u, 1u << 24));
  kl.add_option("--worst", arguments.worst, "Positions that are listed, the furthest apart first")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0u, 1000000u));
  kl.add_option("--tokens", arguments.tokens, "Only so many tokens of the text (default: all)")
      ->type_name("M")
      ->check(CLI::Range(uint64_t{2}, uint64_t{1} << 32));

  CLI::App& dump = add_command(program, "dump",
                               "What each operation of a prefill step of all ids writes, as files",
                               &run_dump, arguments, code);
  dump.add_option("--ids", arguments.ids_file, "A JSON list of token ids")
      ->required()
      ->type_name("FILE");
  dump.add_option("--out", arguments.out_file,
                  "A new folder; gets float32 files of [rows, columns] and index.json")
      ->required()
      ->type_name("DIR");
  dump.add_option("--layer", arguments.layer, "Only operations of this layer")->type_name("L");

  CLI::App& first_divergence = add_command(
      program, "first-divergence",
      "The first tensor of a prefill step that differs in two models, and how it goes on",
      &run_first_divergence, arguments, code);
  tools::add_against_options(first_divergence, arguments.against);
  first_divergence.add_option("--ids", arguments.ids_file, "A JSON list of token ids")
      ->required()
      ->type_name("FILE");
  first_divergence
      .add_option("--tolerance", arguments.tolerance,
                  "Values differ if they are further apart; 0: if their bits differ")
      ->capture_default_str()
      ->type_name("T")
      ->check(tools::number_range(0, std::numeric_limits<float>::max()));

  CLI::App& needle = add_command(program, "needle",
                                 "Numbers that stand in long prompts: how many answers have them",
                                 &run_needle, arguments, code);
  needle
      .add_option("--file", arguments.needle_file,
                  "Lines of JSON with prompt, answer and, if known, depth and reference_correct")
      ->required()
      ->type_name("FILE");
  needle.add_option("--limit", arguments.limit, "Only so many lines (default: all)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  needle.add_option("--max-tokens", arguments.max_tokens, "Tokens of an answer, at most")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1u, 65536u));

  return tools::parse_and_run(program, argc, argv, code);
}
