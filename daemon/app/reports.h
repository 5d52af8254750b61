// JSON of the control API: status, plugins, plan, swap.
#pragma once

#include <string>

#include "daemon/app/model_host.h"

namespace atlas::app {

inline constexpr char kVersion[] = ATLAS_VERSION;

std::string status_report(const ModelHost& host, double uptime_s, bool draining);
std::string plugins_report(const ModelHost& host);
/// `records`: every launch of every bucket too.
std::string plan_report(const Assembly& assembly, bool records);
std::string swap_report(const SwapOutcome& outcome, bool dry_run);

}  // namespace atlas::app
