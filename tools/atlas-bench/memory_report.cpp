#include "tools/atlas-bench/memory_report.h"

#include "daemon/app/assembly.h"
#include "tools/atlas-bench/report.h"

namespace atlas::bench {

using tools::Json;

Result<MemoryReport> report_memory(const settings::Settings& settings) {
  app::Plugins plugins;
  ATLAS_RETURN_IF_ERROR(app::load_plugins(settings, plugins));
  ATLAS_ASSIGN_OR_RETURN(const app::Assembly assembly, app::assemble(settings, plugins));
  const plan::Plan& plan = assembly.model->plan;
  MemoryReport report;
  report.model = app::model_name(settings);
  report.platform = plan.platform;
  report.sequences = plan.limits.max_sequences;
  report.context_tokens = plan.limits.max_positions;
  if (settings.engine.context_tokens > report.context_tokens) {
    report.asked_tokens = settings.engine.context_tokens;
  }
  report.cache_tokens = uint64_t{plan.page_count - 1} * plan.page_tokens;  // one is for scratch
  for (const plan::Weight& weight : plan.weights) {
    report.weights[weight.format] += plan.buffers[weight.buffer].bytes;
  }
  for (const plan::Vector& vector : plan.vectors) {
    report.weights["vectors"] += plan.buffers[vector.buffer].bytes;
  }
  for (const auto& [line, bytes] : plan.ledger.bytes) {
    report.ledger[std::string(plan::ledger_line_name(line))] = bytes;
  }
  report.total = plan.ledger.total();
  report.on_device = plan.ledger.on_device(false);
  report.bytes_a_position = static_cast<double>(plan.page_bytes) / plan.page_tokens;
  report.bytes_a_slot = plan.slot_bytes;
  report.bytes_an_anchor = plan.anchor_bytes;
  report.anchors = plan.limits.anchors;
  return report;
}

std::string memory_text(const MemoryReport& report) {
  const auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / (1u << 20); };
  std::string text = fmt::format(
      "{} on {}: {} sequences, the longest of {} positions, {} positions together\n", report.model,
      report.platform, report.sequences, report.context_tokens, report.cache_tokens);
  if (report.asked_tokens != 0) {
    text += fmt::format("the model was made for {} positions: that is what is counted, not {}\n",
                        report.context_tokens, report.asked_tokens);
  }
  for (const auto& [line, bytes] : report.ledger) {
    text += fmt::format("{:>12.1f} MiB  {}\n", mib(bytes), line);
    if (line != "weights") continue;
    for (const auto& [format, part] : report.weights) {
      text += fmt::format("{:>12} {:>12.1f} MiB  {}\n", "", mib(part), format);
    }
  }
  text += fmt::format("{:>12.1f} MiB  total; {:.1f} MiB of it in a card's own memory\n",
                      mib(report.total), mib(report.on_device));
  text += fmt::format(
      "a position takes {:.0f} bytes of cache, a sequence {:.1f} MiB besides; {} anchors of {:.1f} "
      "MiB\n",
      report.bytes_a_position, mib(report.bytes_a_slot), report.anchors,
      mib(report.bytes_an_anchor));
  return text;
}

std::string memory_json(const MemoryReport& report, const Machine& machine) {
  Json json = {{"benchmark", "memory"},
               {"machine", machine_json(machine)},
               {"model", report.model},
               {"platform", report.platform},
               {"sequences", report.sequences},
               {"context_tokens", report.context_tokens},
               {"cache_tokens", report.cache_tokens},
               {"ledger_bytes", report.ledger},
               {"weight_bytes", report.weights},
               {"total_bytes", report.total},
               {"device_bytes", report.on_device},
               {"bytes_a_position", report.bytes_a_position},
               {"bytes_a_slot", report.bytes_a_slot},
               {"anchors", report.anchors},
               {"bytes_an_anchor", report.bytes_an_anchor}};
  if (report.asked_tokens != 0) json["asked_context_tokens"] = report.asked_tokens;
  return tools::json_text(json);
}

}  // namespace atlas::bench
