// Prometheus's text format, version 0.0.4, and the JSON of /atlas/v1/stats.
#include "daemon/serve/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <vector>

#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

struct Served {
  std::string name;  // of the model; empty while there is none
  engine::EngineStats stats;
};

std::vector<Served> served(const Control& control) {
  std::vector<Served> out;
  for (const auto& engine : control.engines()) {
    const auto model = engine->model();
    out.push_back({model ? model->id : std::string(), engine->stats()});
  }
  return out;
}

uint64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long long total = 0;
  unsigned long long resident = 0;
  const int read = std::fscanf(file, "%llu %llu", &total, &resident);
  std::fclose(file);
  return read == 2 ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// Label values: backslash, quote and newline are escaped.
std::string label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

class Text {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <typename Value>
  void sample(std::string_view labels, Value value) {
    if (labels.empty()) {
      fmt::format_to(std::back_inserter(out), "{} {}\n", name_, value);
    } else {
      fmt::format_to(std::back_inserter(out), "{}{{{}}} {}\n", name_, labels, value);
    }
  }
  template <typename Value>
  void single(std::string_view name, std::string_view type, std::string_view help, Value value) {
    family(name, type, help);
    sample("", value);
  }
  std::string out;

 private:
  std::string_view name_;
};

struct EngineSeries {
  std::string_view name, type, help;
  double (*value)(const engine::EngineStats&);
};

/// The sum over all old generations.
template <typename Part>
double total(const engine::EngineStats& stats, Part part) {
  double sum = 0;
  for (const engine::OldGeneration& old : stats.old_generations) {
    sum += static_cast<double>(part(old));
  }
  return sum;
}

constexpr EngineSeries kEngineSeries[] = {
    {"atlas_engine_ready", "gauge", "1 while the engine takes requests.",
     [](const engine::EngineStats& s) {
       return s.state == engine::EngineState::kServing ? 1.0 : 0.0;
     }},
    {"atlas_engine_load_progress", "gauge", "Progress of the loading phase, 0 to 1.",
     [](const engine::EngineStats& s) { return s.progress; }},
    {"atlas_engine_generation", "gauge", "Number of the generation that serves new requests.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.generation); }},
    {"atlas_engine_old_generation_requests", "gauge",
     "Requests that run on generations which were replaced.",
     [](const engine::EngineStats& s) {
       return total(s, [](const engine::OldGeneration& old) { return old.requests; });
     }},
    {"atlas_engine_old_generation_bytes", "gauge",
     "Bytes that are free again when they have ended.",
     [](const engine::EngineStats& s) {
       return total(s, [](const engine::OldGeneration& old) { return old.bytes; });
     }},
    {"atlas_engine_requests_running", "gauge", "Sequences being computed.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.running); }},
    {"atlas_engine_requests_queued", "gauge", "Sequences waiting for a slot.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.queued); }},
    {"atlas_engine_pages_total", "gauge", "Pages of the key-value cache.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.pages_total); }},
    {"atlas_engine_pages_used", "gauge", "Pages in use.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.pages_used); }},
    {"atlas_engine_slots_total", "gauge", "Slots for sequences.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.slots_total); }},
    {"atlas_engine_slots_used", "gauge", "Slots in use.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.slots_used); }},
    {"atlas_prompt_tokens_total", "counter", "Prompt tokens of accepted sequences.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.prompt_tokens); }},
    {"atlas_cached_tokens_total", "counter", "Prompt tokens that were not computed again.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.cached_tokens); }},
    {"atlas_generated_tokens_total", "counter", "Tokens generated.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.generated_tokens); }},
    {"atlas_drafted_tokens_total", "counter",
     "Tokens that the draft head proposed and a step checked.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.drafted_tokens); }},
    {"atlas_accepted_tokens_total", "counter", "Proposed tokens that were the model's own.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.accepted_tokens); }},
    {"atlas_engine_anchors_total", "gauge", "Recurrent states that can be kept.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.anchors_total); }},
    {"atlas_engine_anchors_used", "gauge", "Recurrent states kept, for sequences or prefixes.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.anchors_used); }},
    {"atlas_prefix_pages", "gauge", "Pages that the prefix cache holds.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.prefix_pages); }},
    {"atlas_prefix_recomputed_tokens_total", "counter",
     "Tokens computed again although their pages were cached: no state to go on from.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.prefix.recomputed_tokens); }},
    {"atlas_engine_progress_ticks_total", "counter", "Grows while the engine's thread is alive.",
     [](const engine::EngineStats& s) { return static_cast<double>(s.progress_ticks); }},
};

void append_engines(Text& text, const std::vector<Served>& engines) {
  for (const EngineSeries& series : kEngineSeries) {
    text.family(series.name, series.type, series.help);
    for (const Served& one : engines) {
      text.sample(fmt::format("model=\"{}\"", label(one.name)), series.value(one.stats));
    }
  }
  text.family("atlas_prefix_lookups_total", "counter", "Lookups in the prefix cache by outcome.");
  for (const Served& one : engines) {
    const auto sample = [&](std::string_view outcome, uint64_t count) {
      text.sample(fmt::format("model=\"{}\",outcome=\"{}\"", label(one.name), outcome), count);
    };
    sample("exact", one.stats.prefix.exact);
    sample("anchor", one.stats.prefix.anchor);
    sample("pages", one.stats.prefix.pages);
    sample("miss", one.stats.prefix.miss);
  }
  text.family("atlas_engine_sequences_total", "counter", "Sequences by how they ended.");
  for (const Served& one : engines) {
    const auto sample = [&](std::string_view result, uint64_t count) {
      text.sample(fmt::format("model=\"{}\",result=\"{}\"", label(one.name), result), count);
    };
    sample("finished", one.stats.requests_finished);
    sample("failed", one.stats.requests_failed);
    sample("cancelled", one.stats.requests_cancelled);
    sample("refused", one.stats.requests_refused);
  }
  text.family("atlas_engine_steps_total", "counter", "Steps by kind.");
  for (const Served& one : engines) {
    text.sample(fmt::format("model=\"{}\",kind=\"prefill\"", label(one.name)),
                one.stats.steps_prefill);
    text.sample(fmt::format("model=\"{}\",kind=\"decode\"", label(one.name)),
                one.stats.steps_decode);
  }
  text.family("atlas_engine_step_seconds_total", "counter", "Time spent in steps by kind.");
  for (const Served& one : engines) {
    text.sample(fmt::format("model=\"{}\",kind=\"prefill\"", label(one.name)),
                one.stats.step_seconds_prefill);
    text.sample(fmt::format("model=\"{}\",kind=\"decode\"", label(one.name)),
                one.stats.step_seconds_decode);
  }
  text.family("atlas_memory_ledger_bytes", "gauge", "Lines of the memory ledger.");
  for (const Served& one : engines) {
    for (const auto& [line, bytes] : one.stats.ledger) {
      text.sample(fmt::format("model=\"{}\",line=\"{}\"", label(one.name), label(line)), bytes);
    }
  }
}

double uptime_s(const Metrics& metrics) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - metrics.start).count();
}

}  // namespace

void Histogram::add(double seconds) {
  const auto at = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<size_t>(at - kBounds.begin())];
  ++count_;
  sum_ += seconds;
}

void Histogram::append(std::string& out, std::string_view name, std::string_view labels) const {
  const std::string_view separator = labels.empty() ? "" : ",";
  uint64_t below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    below += counts_[i];
    fmt::format_to(std::back_inserter(out), "{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels,
                   separator, kBounds[i], below);
  }
  fmt::format_to(std::back_inserter(out), "{}_bucket{{{}{}le=\"+Inf\"}} {}\n", name, labels,
                 separator, count_);
  const std::string braces = labels.empty() ? "" : fmt::format("{{{}}}", labels);
  fmt::format_to(std::back_inserter(out), "{}_sum{} {}\n{}_count{} {}\n", name, braces, sum_, name,
                 braces, count_);
}

void Metrics::count_request(std::string_view route, int status, double request_seconds) {
  ++requests[{route, status}];
  seconds[route].add(request_seconds);
}

std::string_view state_word(engine::EngineState state) {
  switch (state) {
    case engine::EngineState::kLoading:
      return "loading";
    case engine::EngineState::kServing:
      return "serving";
    case engine::EngineState::kDraining:
      return "draining";
    case engine::EngineState::kFailed:
      return "failed";
    case engine::EngineState::kStopped:
      break;
  }
  return "stopped";
}

std::string prometheus_text(const Metrics& metrics, const Control& control) {
  Text text;
  append_engines(text, served(control));
  text.family("atlas_http_requests_total", "counter", "Requests by route and status.");
  for (const auto& [key, count] : metrics.requests) {
    text.sample(fmt::format("route=\"{}\",status=\"{}\"", key.first, key.second), count);
  }
  text.family("atlas_http_request_seconds", "histogram",
              "Time from a request to its whole answer.");
  for (const auto& [route, histogram] : metrics.seconds) {
    histogram.append(text.out, "atlas_http_request_seconds", fmt::format("route=\"{}\"", route));
  }
  text.family("atlas_time_to_first_token_seconds", "histogram",
              "Time from a request to its first token.");
  metrics.first_token.append(text.out, "atlas_time_to_first_token_seconds", "");
  text.family("atlas_inter_token_seconds", "histogram", "Time between updates of one sequence.");
  metrics.between_tokens.append(text.out, "atlas_inter_token_seconds", "");
  text.family("atlas_http_refused_total", "counter", "Requests refused, by error code.");
  for (const auto& [code, count] : metrics.refused) {
    text.sample(fmt::format("code=\"{}\"", label(code)), count);
  }
  text.single("atlas_connections_open", "gauge", "Connections now.", metrics.connections_open);
  text.single("atlas_connections_total", "counter", "Connections accepted.",
              metrics.connections_accepted);
  text.single("atlas_accept_errors_total", "counter", "Failed accepts.", metrics.accept_errors);
  text.single("atlas_clients_gone_total", "counter", "Clients that left during an answer.",
              metrics.streams_cancelled);
  text.single("atlas_slow_readers_total", "counter", "Clients cut off for not reading.",
              metrics.slow_readers);
  text.single("atlas_http_sent_bytes_total", "counter", "Bytes written.", metrics.bytes_sent);
  text.single("atlas_http_received_bytes_total", "counter", "Bytes read.", metrics.bytes_received);
  text.single("atlas_uptime_seconds", "gauge", "Time since the server started.", uptime_s(metrics));
  text.single("process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
  return std::move(text.out);
}

std::string stats_json(const Metrics& metrics, const Control& control) {
  std::string out = R"({"engines":[)";
  bool first = true;
  for (const Served& one : served(control)) {
    const engine::EngineStats& s = one.stats;
    if (!first) out += ',';
    first = false;
    out += R"({"model":)";
    append_json_string(out, one.name);
    fmt::format_to(std::back_inserter(out), R"(,"state":"{}","generation":{},"graphs":)",
                   state_word(s.state), s.generation);
    append_json_string(out, s.graphs);
    fmt::format_to(
        std::back_inserter(out),
        R"(,"running":{},"queued":{},"requests":{{"finished":{},"failed":{},"cancelled":{},)"
        R"("refused":{}}},"tokens":{{"prompt":{},"cached":{},"generated":{},"drafted":{},)"
        R"("accepted":{}}},"prefix":{{"exact":{},"anchor":{},"pages":{},"miss":{},)"
        R"("recomputed_tokens":{},"pages_held":{}}},"anchors":{{"total":{},"used":{}}},)"
        R"("steps":{{"prefill":{},"decode":{},"prefill_seconds":{},"decode_seconds":{}}},)"
        R"("pages":{{"total":{},"used":{}}},"slots":{{"total":{},"used":{}}},)"
        R"("progress_ticks":{},"old_generations":[)",
        s.running, s.queued, s.requests_finished, s.requests_failed, s.requests_cancelled,
        s.requests_refused, s.prompt_tokens, s.cached_tokens, s.generated_tokens, s.drafted_tokens,
        s.accepted_tokens, s.prefix.exact, s.prefix.anchor, s.prefix.pages, s.prefix.miss,
        s.prefix.recomputed_tokens, s.prefix_pages, s.anchors_total, s.anchors_used,
        s.steps_prefill, s.steps_decode, s.step_seconds_prefill, s.step_seconds_decode,
        s.pages_total, s.pages_used, s.slots_total, s.slots_used, s.progress_ticks);
    for (size_t i = 0; i < s.old_generations.size(); ++i) {
      const engine::OldGeneration& old = s.old_generations[i];
      fmt::format_to(std::back_inserter(out), R"({}{{"generation":{},"requests":{},"bytes":{}}})",
                     i > 0 ? "," : "", old.generation, old.requests, old.bytes);
    }
    out += R"(],"ledger":[)";
    for (size_t i = 0; i < s.ledger.size(); ++i) {
      out += i > 0 ? R"(,{"line":)" : R"({"line":)";
      append_json_string(out, s.ledger[i].first);
      fmt::format_to(std::back_inserter(out), R"(,"bytes":{}}})", s.ledger[i].second);
    }
    out += "]}";
  }
  fmt::format_to(
      std::back_inserter(out),
      R"(],"server":{{"uptime_seconds":{:.3f},"connections":{{"open":{},"accepted":{}}},)"
      R"("clients_gone":{},"slow_readers":{},"accept_errors":{},"bytes_sent":{},)"
      R"("bytes_received":{},"resident_bytes":{},"requests":[)",
      uptime_s(metrics), metrics.connections_open, metrics.connections_accepted,
      metrics.streams_cancelled, metrics.slow_readers, metrics.accept_errors, metrics.bytes_sent,
      metrics.bytes_received, resident_bytes());
  first = true;
  for (const auto& [key, count] : metrics.requests) {
    fmt::format_to(std::back_inserter(out), R"({}{{"route":"{}","status":{},"count":{}}})",
                   first ? "" : ",", key.first, key.second, count);
    first = false;
  }
  out += R"(],"refused":{)";
  first = true;
  for (const auto& [code, count] : metrics.refused) {
    if (!first) out += ',';
    first = false;
    append_json_string(out, code);
    fmt::format_to(std::back_inserter(out), ":{}", count);
  }
  out += "}}}";
  return out;
}

}  // namespace atlas::serve
