#include "tools/atlas-bench/step_bench.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <string>

#include "tools/atlas-bench/engine_bench.h"
#include "tools/atlas-bench/report.h"

namespace atlas::bench {

using engine::StepRows;
using engine::TokenId;
using tools::Json;
using Clock = std::chrono::steady_clock;

namespace {

/// "layers.17.attn" is "layers.*.attn".
std::string without_numbers(const std::string& name) {
  std::string text;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    const bool whole = i == 0 || name[i - 1] == '.';
    if (!digit || !whole) {
      text += name[i];
      continue;
    }
    size_t end = i;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    text += end == name.size() || name[end] == '.' ? "*" : name.substr(i, end - i);
    i = end - 1;
  }
  return text;
}

/// Microseconds of one run of `step`.
Result<double> time_step(const StepExecutable& step, Stream& stream, double min_ms) {
  ATLAS_RETURN_IF_ERROR(step.launch(stream));
  ATLAS_RETURN_IF_ERROR(stream.synchronize());
  for (uint32_t runs = 4;; runs *= 2) {
    const auto from = Clock::now();
    for (uint32_t i = 0; i < runs; ++i) ATLAS_RETURN_IF_ERROR(step.launch(stream));
    ATLAS_RETURN_IF_ERROR(stream.synchronize());
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - from).count();
    if (ms >= min_ms || runs >= 1u << 20) return 1000 * ms / runs;
  }
}

class Profiler {
 public:
  Profiler(const tools::LocalModel& model, const StepBenchOptions& options,
           engine::Stepper& stepper)
      : model_(model), options_(options), stepper_(stepper) {}

  Result<StepProfile> profile(plan::StepKind kind, uint32_t sequences, uint32_t rows) {
    std::vector<std::vector<TokenId>> tokens(sequences);
    for (uint32_t slot = 0; slot < sequences; ++slot) {
      tokens[slot] = random_prompt(options_.context + rows, stepper_.vocab(), slot + 1);
      ATLAS_RETURN_IF_ERROR(fill_context(slot, tokens[slot]));
    }
    std::vector<StepRows> share;
    for (uint32_t slot = 0; slot < sequences; ++slot) {
      share.push_back({slot, std::span(tokens[slot]).last(rows), 1, options_.context == 0, {}});
    }
    StepProfile profile;
    profile.rows = sequences * rows;
    const auto launch = [&](const plan::Bucket& bucket, Stream& stream) {
      return measure(bucket, stream, profile);
    };
    const auto logits = stepper_.run(kind, share, launch);
    if (!logits) return logits.error();
    return profile;
  }

 private:
  Status fill_context(uint32_t slot, const std::vector<TokenId>& tokens) {
    uint32_t most = 0;
    for (const plan::StepPlan& step : stepper_.generation().plan().steps) {
      if (step.bucket.kind == plan::StepKind::kPrefill) most = std::max(most, step.bucket.rows);
    }
    for (uint32_t first = 0; first < options_.context;) {
      const uint32_t count = std::min(most, options_.context - first);
      const StepRows rows{slot, std::span(tokens).subspan(first, count), 0, first == 0, {}};
      const auto logits = stepper_.run(plan::StepKind::kPrefill, {&rows, 1});
      if (!logits) return logits.error();
      first += count;
    }
    return {};
  }

  Status measure(const plan::Bucket& bucket, Stream& stream, StepProfile& profile) {
    const plan::StepPlan& step = *stepper_.generation().plan().find(bucket);
    profile.bucket = bucket;
    profile.launches = static_cast<uint32_t>(step.records.size());
    // The frame's records are the first and the last.
    const size_t last = step.records.size() - 1;
    ATLAS_RETURN_IF_ERROR(run_once(bucket, {0}, stream));
    std::vector<size_t> body(last - 1);
    std::iota(body.begin(), body.end(), size_t{1});
    {
      ATLAS_ASSIGN_OR_RETURN(const StepExecutable whole, model_.records(bucket, body));
      ATLAS_ASSIGN_OR_RETURN(profile.us, time_step(whole, stream, options_.min_ms));
    }
    for (const auto& [operation, places] : operations(step, body)) {
      ATLAS_RETURN_IF_ERROR(measure_operation(bucket, step, operation, places, stream, profile));
    }
    std::sort(profile.groups.begin(), profile.groups.end(),
              [](const RecordGroup& a, const RecordGroup& b) {
                return a.us * a.launches > b.us * b.launches;
              });
    return run_once(bucket, {last}, stream);
  }

  /// Places of an operation's records, for each layer that has it.
  using Places = std::vector<std::vector<size_t>>;

  /// Operations of one name whose records are alike. A layer has several products of one name:
  /// their bytes tell them apart.
  static std::map<std::string, Places> operations(const plan::StepPlan& step,
                                                  const std::vector<size_t>& body) {
    std::map<uint32_t, std::vector<size_t>> by_operation;
    for (const size_t i : body) by_operation[step.records[i].program_index].push_back(i);
    std::map<std::string, Places> alike;
    for (const auto& [operation, places] : by_operation) {
      std::string key = without_numbers(step.records[places.front()].operation);
      for (const size_t i : places) {
        key += fmt::format("\n{} {}", step.records[i].kernel, step.records[i].bytes_read);
      }
      alike[key].push_back(places);
    }
    return alike;
  }

  /// An operation's records read what those before them have left in scratch memory that other
  /// operations use too. So they run together, one more each time, and a record's time is what it
  /// adds.
  Status measure_operation(const plan::Bucket& bucket, const plan::StepPlan& step,
                           const std::string& key, const Places& places, Stream& stream,
                           StepProfile& profile) {
    double before = 0;
    for (size_t count = 1; count <= places.front().size(); ++count) {
      std::vector<size_t> records;
      for (const std::vector<size_t>& one : places) {
        records.insert(records.end(), one.begin(), one.begin() + static_cast<ptrdiff_t>(count));
      }
      ATLAS_ASSIGN_OR_RETURN(const StepExecutable part, model_.records(bucket, records));
      ATLAS_ASSIGN_OR_RETURN(const double us, time_step(part, stream, options_.min_ms));
      const plan::Record& last = step.records[places.front()[count - 1]];
      const auto launches = static_cast<uint32_t>(places.size());
      profile.groups.push_back({key.substr(0, key.find('\n')), last.kernel, launches,
                                std::max(us - before, 0.0) / launches, last.bytes_read * launches});
      before = us;
    }
    return {};
  }

  Status run_once(const plan::Bucket& bucket, const std::vector<size_t>& records, Stream& stream) {
    ATLAS_ASSIGN_OR_RETURN(const StepExecutable step, model_.records(bucket, records));
    ATLAS_RETURN_IF_ERROR(step.launch(stream));
    return stream.synchronize();
  }

  const tools::LocalModel& model_;
  const StepBenchOptions& options_;
  engine::Stepper& stepper_;
};

}  // namespace

Result<std::vector<StepProfile>> bench_steps(const tools::LocalModel& model,
                                             const StepBenchOptions& options) {
  ATLAS_ASSIGN_OR_RETURN(const auto stepper, model.stepper());
  Profiler profiler(model, options, *stepper);
  std::vector<StepProfile> profiles;
  for (const uint32_t sequences : options.decode) {
    ATLAS_ASSIGN_OR_RETURN(StepProfile profile,
                           profiler.profile(stepper->decode_kind(), sequences, 1));
    profiles.push_back(std::move(profile));
  }
  for (const uint32_t rows : options.prefill) {
    ATLAS_ASSIGN_OR_RETURN(StepProfile profile,
                           profiler.profile(plan::StepKind::kPrefill, 1, rows));
    profiles.push_back(std::move(profile));
  }
  return profiles;
}

std::string steps_text(const std::vector<StepProfile>& profiles) {
  std::string text;
  for (const StepProfile& profile : profiles) {
    double parts = 0;
    for (const RecordGroup& group : profile.groups) parts += group.us * group.launches;
    text +=
        fmt::format("{}: {} used, {} launches, {:.1f} us; groups by themselves {:.1f} us\n",
                    profile.bucket.to_string(), profile.rows, profile.launches, profile.us, parts);
    if (profile.bucket.kind == plan::StepKind::kVerify) {
      text +=
          "a model that drafts decodes by verify steps; the rows that would hold drafts are idle "
          "here\n";
    }
    text += fmt::format("{:>10} {:>6} {:>8} {:>9} {:>9}  {}\n", "us", "times", "us each", "MB each",
                        "GB/s", "operation (kernel)");
    for (const RecordGroup& group : profile.groups) {
      const double megabytes = static_cast<double>(group.bytes_read) / group.launches / 1e6;
      text += fmt::format("{:>10.1f} {:>6} {:>8.2f} {:>9.3f} {:>9.1f}  {} ({})\n",
                          group.us * group.launches, group.launches, group.us, megabytes,
                          1000 * megabytes / group.us, group.operation, group.kernel);
    }
  }
  return text;
}

std::string steps_json(const std::vector<StepProfile>& profiles, const tools::LocalModel& model,
                       const Machine& machine) {
  Json json = {
      {"benchmark", "steps"}, {"machine", machine_json(machine)}, {"model", model_json(model)}};
  json["results"] = Json::array();
  for (const StepProfile& profile : profiles) {
    Json groups = Json::array();
    for (const RecordGroup& group : profile.groups) {
      groups.push_back({{"operation", group.operation},
                        {"kernel", group.kernel},
                        {"launches", group.launches},
                        {"us_each", group.us},
                        {"bytes_read", group.bytes_read}});
    }
    json["results"].push_back({{"step", profile.bucket.to_string()},
                               {"rows", profile.rows},
                               {"launches", profile.launches},
                               {"us", profile.us},
                               {"groups", std::move(groups)}});
  }
  return tools::json_text(json);
}

}  // namespace atlas::bench
