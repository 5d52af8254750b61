#include "tools/atlas-eval/identity.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>

#include "daemon/model/tokenizer/tokenizer.h"
#include "tools/common/json.h"
#include "tools/common/local_model.h"

namespace atlas::eval {

using engine::TokenId;
using Clock = std::chrono::steady_clock;
using tools::Json;

namespace {

/// Sequences' lengths in 32nds of all tokens: unequal.
constexpr std::array kParts{10u, 16u, 1u, 5u};
static_assert(crowd_size(kParts.size()) == kIdentitySlots);
/// Fewer, and no sequence is longer than a prefill step of 64 rows.
constexpr uint32_t kFewestTokens = 144;
/// Share of the time that the runs may plan with; the rest is for loading and for busy machines.
constexpr double kPlannedShare = 0.6;

std::string bits_text(uint32_t bits) {
  return fmt::format("0x{:08x} ({})", bits, std::bit_cast<float>(bits));
}

Json setting_json(const Setting& setting) {
  Json json = {{"graph", setting.graph},
               {"cut", cut_name(setting.cut)},
               {"batch", batch_name(setting.batch)}};
  if (setting.threads != 0) json["threads"] = setting.threads;
  return json;
}

Json difference_json(const Difference& difference) {
  return {{"reference", setting_json(difference.reference)},
          {"setting", setting_json(difference.setting)},
          {"sequence", difference.row.sequence},
          {"position", difference.row.position},
          {"token", difference.row.token},
          {"reference_bits", fmt::format("0x{:08x}", difference.row.reference_bits)},
          {"bits", fmt::format("0x{:08x}", difference.row.bits)}};
}

}  // namespace

std::string Setting::text() const {
  const std::string team =
      threads == 0 ? "" : fmt::format("{} thread{}, ", threads, threads == 1 ? "" : "s");
  return fmt::format("{}{}, {}, {}", team, graph ? "graph" : "eager", cut_name(cut),
                     batch_name(batch));
}

std::string Difference::text() const {
  return fmt::format(
      "first difference: sequence {}, position {}, logit of token {}\n"
      "  {}: {}\n"
      "  {}: {}\n",
      row.sequence, row.position, row.token, bits_text(row.reference_bits), reference.text(),
      bits_text(row.bits), setting.text());
}

std::string Identity::text() const {
  std::string text = fmt::format(
      "{}: {} settings, {} of {} pairs of them, sequences of {} tokens\n"
      "compared {} rows, {} logits, in {:.1f} s; graphs: {}\n",
      identical() ? "identical" : "DIFFERENT", settings.size(), pairs, pairs_of,
      fmt::join(lengths, ", "), rows, logits, seconds, graphs);
  if (rows_different > 0) text += fmt::format("{} rows differ\n", rows_different);
  if (first) text += first->text();
  if (graphs_differ) text += "a graph differs from its eager walk and was not used\n";
  return text;
}

std::string Identity::json() const {
  Json json = {{"identical", identical()},
               {"complete", complete()},
               {"pairs_covered", pairs},
               {"pairs_total", pairs_of},
               {"rows_compared", rows},
               {"logits_compared", logits},
               {"rows_different", rows_different},
               {"first_difference", first ? difference_json(*first) : Json()},
               {"graphs", graphs},
               {"graphs_differ", graphs_differ},
               {"sequence_tokens", lengths},
               {"seconds", seconds}};
  json["settings"] = Json::array();
  for (const Setting& setting : settings) json["settings"].push_back(setting_json(setting));
  return tools::json_text(json);
}

namespace {

/// The comparison while it runs.
class Comparison {
 public:
  Comparison(const settings::Settings& settings, const IdentityOptions& options)
      : base_(settings),
        ids_(options.ids),
        text_(options.text),
        threads_(options.threads.size() < 2 ? std::vector<uint32_t>{0} : options.threads),
        start_(Clock::now()),
        deadline_(start_ + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(options.seconds))),
        seconds_(options.seconds) {}

  Result<Identity> run() {
    const std::vector<uint32_t> counts{static_cast<uint32_t>(threads_.size()), 2, kCuts, kBatches};
    std::vector<Choice> choices = cover_pairs(counts);
    // One model at a time: settings that share one stand together, the first one's in front.
    std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
      return std::pair(a[0], a[1]) < std::pair(b[0], b[1]);
    });
    runs_ = choices.size();
    result_.pairs_of = pairs_total(counts);
    size_t done = 0;
    while (done < choices.size() && Clock::now() < deadline_) {
      size_t end = done;
      while (end < choices.size() &&
             std::equal(choices[end].begin(), choices[end].begin() + 2, choices[done].begin())) {
        ++end;
      }
      const std::span group(choices.data() + done, end - done);
      ATLAS_ASSIGN_OR_RETURN(const size_t ran, run_group(group));
      done += ran;
      if (ran < group.size()) break;  // out of time
    }
    choices.resize(done);
    result_.pairs = pairs_covered(choices);
    result_.rows = rows_.rows();
    result_.logits = rows_.logits();
    result_.rows_different = rows_.rows_different();
    result_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return std::move(result_);
  }

 private:
  Setting setting(const Choice& choice) const {
    return {threads_[choice[0]], choice[1] == 1, static_cast<Cut>(choice[2]),
            static_cast<Batch>(choice[3])};
  }

  /// Runs settings of one model, until the time is up; how many.
  Result<size_t> run_group(std::span<const Choice> group) {
    const Setting first = setting(group.front());
    settings::Settings settings = base_;
    settings.engine.graphs = first.graph;
    if (first.threads != 0) settings = tools::with_threads(std::move(settings), first.threads);
    ATLAS_ASSIGN_OR_RETURN(const auto model, tools::LocalModel::open(settings, kIdentityStepRows));
    ATLAS_ASSIGN_OR_RETURN(const auto stepper, model->stepper());
    if (sequences_.empty()) ATLAS_RETURN_IF_ERROR(choose_sequences(*model, *stepper));
    size_t ran = 0;
    for (const Choice& choice : group) {
      const Status status = run_setting(*stepper, setting(choice));
      if (status.code() == Code::kDeadlineExceeded) break;
      if (!status.ok()) return status.with_context(setting(choice).text());
      ++ran;
    }
    if (first.graph) {
      const exec::Steps& steps = model->generation().steps();
      result_.graphs_differ |= steps.found_different_graph();
      if (result_.graphs.empty() || result_.graphs == "on") result_.graphs = steps.graph_report();
    }
    return ran;
  }

  /// Lengths for which all runs fit the time, by how long a few decode steps take.
  Status choose_sequences(const tools::LocalModel& model, engine::Stepper& stepper) {
    const uint32_t vocab = stepper.vocab();
    const std::vector<TokenId> probe{1 % vocab, 2 % vocab, 3 % vocab, 4 % vocab};
    const auto start = Clock::now();
    ATLAS_RETURN_IF_ERROR(walk(stepper, {probe}, Cut::kDecode, Batch::kAlone,
                               [](size_t, uint32_t, std::span<const float>) { return Status(); }));
    const double row_seconds = std::chrono::duration<double>(Clock::now() - start).count() /
                               static_cast<double>(probe.size());
    const double fit = seconds_ * kPlannedShare / (row_seconds * static_cast<double>(runs_));
    const auto total =
        static_cast<uint32_t>(std::clamp(fit, double{kFewestTokens}, double{kIdentityTokens}));
    if (ids_.empty() && !text_.empty()) {
      ATLAS_ASSIGN_OR_RETURN(const auto tokenizer, model.tokenizer());
      ids_ = tokenizer->encode(text_, {.parse_special = true, .add_bos_as_model_says = true});
    }
    uint32_t at = 0;
    for (const uint32_t parts : kParts) {
      const uint32_t length = std::clamp(total * parts / 32, 1u, model.info().context_tokens);
      std::vector<TokenId> tokens;
      for (uint32_t i = 0; i < length; ++i, ++at) {
        // Without ids: some that spread over the vocabulary; the factor is a prime, nothing more.
        tokens.push_back(ids_.empty() ? static_cast<TokenId>((at + 1) * 15485863ull % vocab)
                                      : ids_[at % ids_.size()]);
        if (tokens.back() >= vocab) {
          return invalid_argument("the ids have {}, and the vocabulary has {} tokens",
                                  tokens.back(), vocab);
        }
      }
      result_.lengths.push_back(tokens.size());
      sequences_.push_back(std::move(tokens));
    }
    return {};
  }

  Status run_setting(engine::Stepper& stepper, const Setting& setting) {
    const bool is_reference = result_.settings.empty();
    if (is_reference) rows_ = ReferenceRows(sequences_.size(), stepper.vocab());
    const Status status =
        walk(stepper, sequences_, setting.cut, setting.batch,
             [&](size_t sequence, uint32_t first, std::span<const float> logits) -> Status {
               if (Clock::now() > deadline_) return deadline_exceeded("out of time");
               if (is_reference) return rows_.keep(sequence, first, logits);
               rows_.compare(sequence, first, logits);
               return {};
             });
    if (!result_.first && rows_.first_difference()) {
      result_.first = Difference{result_.settings.front(), setting, *rows_.first_difference()};
    }
    if (status.ok()) result_.settings.push_back(setting);
    return status;
  }

  const settings::Settings base_;
  std::vector<TokenId> ids_;
  const std::string text_;
  const std::vector<uint32_t> threads_;
  const Clock::time_point start_, deadline_;
  const double seconds_;
  size_t runs_ = 0;
  Sequences sequences_;
  ReferenceRows rows_;
  Identity result_;
};

}  // namespace

Result<Identity> compare_identity(const settings::Settings& settings,
                                  const IdentityOptions& options) {
  Result<Identity> result = Comparison(settings, options).run();
  if (result && result->settings.empty()) {
    return deadline_exceeded("{} s were too few for one run: give more with --seconds",
                             options.seconds);
  }
  return result;
}

}  // namespace atlas::eval
