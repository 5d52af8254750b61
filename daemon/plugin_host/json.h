// JSON texts of what this room reports: for `atlas-kernel-check --json` and the control API.
#pragma once

#include <span>
#include <string>

#include "daemon/plugin_host/audit.h"
#include "daemon/plugin_host/registry.h"

namespace atlas::plugin_host {

/// {"platform", "ok", "plugins", "packs":[{"file","digest","plugin"}], "kernels_checked",
///  "problems":[{"kind","plugin","kernel","wanted","found","file","available","message"}],
///  "fallbacks":[{"plugin","kernel","reason","fallback"}]}. Digests are texts "0x<16 digits>",
///  since
/// JSON numbers do not hold 64 bits everywhere; keys that do not apply to a problem are left out.
std::string to_json(const AuditReport& report);

/// [{"name","version","licence","kind","file","digest","platforms","named","state","reason"}].
std::string to_json(std::span<const PluginReport> reports);

}  // namespace atlas::plugin_host
