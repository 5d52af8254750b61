#include "daemon/app/reports.h"

#include <map>
#include <nlohmann/json.hpp>

#include "daemon/plugin_host/json.h"
#include "daemon/serve/metrics.h"

namespace atlas::app {

using Json = nlohmann::ordered_json;

namespace {

Json ledger_json(const plan::Ledger& ledger) {
  Json lines = Json::object();
  for (const auto& [line, bytes] : ledger.bytes)
    lines[std::string(plan::ledger_line_name(line))] = bytes;
  lines["total"] = ledger.total();
  return lines;
}

Json engine_json(const engine::EngineCore& engine) {
  const engine::EngineStats stats = engine.stats();
  Json json = {{"state", serve::state_word(stats.state)}};
  if (stats.state == engine::EngineState::kLoading) {
    json["phase"] = stats.phase;
    json["progress"] = stats.progress;
  }
  if (!stats.failure.empty()) json["failure"] = stats.failure;
  if (const auto model = engine.model()) {
    json["model"] = model->id;
    json["architecture"] = model->architecture;
    json["format"] = model->format;
    json["context_tokens"] = model->context_tokens;
    json["tokenizer"] = model->tokenizer != nullptr;
    json["chat_template"] = model->chat_template != nullptr;
  }
  json["generation"] = stats.generation;
  json["graphs"] = stats.graphs;
  json["running"] = stats.running;
  json["queued"] = stats.queued;
  json["slots"] = {{"used", stats.slots_used}, {"total", stats.slots_total}};
  json["pages"] = {{"used", stats.pages_used}, {"total", stats.pages_total}};
  json["old_generations"] = Json::array();
  for (const engine::OldGeneration& old : stats.old_generations) {
    json["old_generations"].push_back(
        {{"generation", old.generation}, {"requests", old.requests}, {"bytes", old.bytes}});
  }
  Json ledger = Json::object();
  for (const auto& [line, bytes] : stats.ledger) ledger[line] = bytes;
  json["ledger_bytes"] = std::move(ledger);
  return json;
}

Json record_json(const plan::Record& record) {
  Json json = {{"operation", record.operation},  {"owner", record.owner},
               {"kernel", record.kernel},        {"grid", record.grid},
               {"block", record.block},          {"shared_bytes", record.shared_bytes},
               {"bytes_read", record.bytes_read}};
  if (!record.after.empty()) json["after"] = record.after;
  return json;
}

Json step_json(const plan::StepPlan& step, bool records) {
  uint64_t bytes = 0;
  std::map<std::string, uint32_t> kernels;
  for (const plan::Record& record : step.records) {
    bytes += record.bytes_read;
    ++kernels[record.kernel];
  }
  Json json = {{"kind", plan::step_kind_name(step.bucket.kind)},
               {"rows", step.bucket.rows},
               {"logit_rows", step.bucket.logit_rows},
               {"records", step.records.size()},
               {"weight_bytes_read", bytes},
               {"kernels", kernels}};
  if (records) {
    Json list = Json::array();
    for (const plan::Record& record : step.records) list.push_back(record_json(record));
    json["record_list"] = std::move(list);
  }
  return json;
}

}  // namespace

std::string status_report(const ModelHost& host, double uptime_s, bool draining) {
  const ServingState state = host.state();
  Json json = {{"version", kVersion},
               {"uptime_s", uptime_s},
               {"draining", draining},
               {"platform", state.settings.platform.name},
               {"device",
                {{"name", state.device.name},
                 {"architecture", state.device.architecture},
                 {"memory_bytes", state.device.memory_bytes},
                 {"available_bytes", state.device.available_bytes},
                 {"unified_memory", state.device.unified_memory}}}};
  json["engines"] = Json::array();
  if (host.engine() != nullptr) json["engines"].push_back(engine_json(*host.engine()));
  return json.dump();
}

std::string plugins_report(const ModelHost& host) {
  return fmt::format("{{\"plugins\":{}}}", plugin_host::to_json(host.state().plugins));
}

std::string plan_report(const Assembly& assembly, bool records) {
  const plan::Plan& plan = assembly.model->plan;
  Json json = {
      {"model", assembly.model->info.id},
      {"path", assembly.settings.model.path},
      {"architecture", assembly.model->info.architecture},
      {"format", assembly.model->info.format},
      {"platform", plan.platform},
      {"context_tokens", assembly.model->info.context_tokens},
      {"max_sequences", plan.limits.max_sequences},
      {"pages",
       {{"count", plan.page_count}, {"tokens", plan.page_tokens}, {"bytes", plan.page_bytes}}},
      {"ledger_bytes", ledger_json(plan.ledger)}};
  json["weights"] = Json::array();
  for (const plan::Weight& weight : plan.weights) {
    Json modules = Json::array();
    for (const plan::WeightPart& part : weight.parts) modules.push_back(part.module);
    json["weights"].push_back({{"modules", std::move(modules)},
                               {"plugin", weight.plugin},
                               {"format", weight.format},
                               {"contract", weight.contract},
                               {"n", weight.n},
                               {"k", weight.k},
                               {"bytes", plan.buffers[weight.buffer].bytes}});
  }
  json["steps"] = Json::array();
  for (const plan::StepPlan& step : plan.steps) json["steps"].push_back(step_json(step, records));
  json["audit"] = Json::parse(plugin_host::to_json(assembly.audit));
  return json.dump();
}

std::string swap_report(const SwapOutcome& outcome, bool dry_run) {
  Json json = {{"dry_run", dry_run},
               {"class", engine::swap_class_name(outcome.verdict.swap)},
               {"beside", outcome.verdict.beside},
               {"bytes_needed", outcome.verdict.bytes_needed},
               {"bytes_available", outcome.verdict.bytes_available},
               {"changed", outcome.verdict.changed},
               {"verdict", outcome.verdict.text()},
               {"from_generation", outcome.from_generation}};
  if (!dry_run) {
    json["to_generation"] = outcome.to_generation;
    json["seconds"] = outcome.seconds;
  }
  return json.dump();
}

}  // namespace atlas::app
