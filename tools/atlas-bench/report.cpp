#include "tools/atlas-bench/report.h"

namespace atlas::bench {

using tools::Json;

Json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"kernel", machine.kernel},
          {"date", machine.date}};
}

Json model_json(const tools::LocalModel& model) {
  const settings::Settings& settings = model.settings();
  Json options = Json::object();
  for (const auto& [key, value] : settings.platform.options) options[key] = value;
  return {{"id", model.info().id},
          {"path", settings.model.path},
          {"architecture", model.info().architecture},
          {"format", model.info().format},
          {"platform", settings.platform.name},
          {"platform_options", options},
          {"graphs", settings.engine.graphs}};
}

Json percentiles_json(const Percentiles& percentiles) {
  return {{"p50", percentiles.p50}, {"p90", percentiles.p90}, {"p99", percentiles.p99}};
}

}  // namespace atlas::bench
