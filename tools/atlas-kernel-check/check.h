// The audit of a folder of plugins and the folders of packs beside it, on a machine without a
// device.
#pragma once

#include <string>
#include <vector>

#include "daemon/plugin_host/audit.h"
#include "tools/atlas-kernel-check/coverage.h"

namespace atlas::kernel_check {

struct CheckOptions {
  std::string platform;       // empty: every platform that has packs
  std::string plugin_folder;  // empty: only `plugin_files`
  std::vector<std::string> plugin_files;
  std::string kernel_folder;  // with one folder a platform
  bool only_plugins = false;  // leave out the core's kernels; a platform may lack packs of its own
};

struct Refused {
  std::string file;
  std::string reason;
};

struct CheckReport {
  std::vector<plugin_host::AuditReport> platforms;
  /// Plugins and packs that cannot be read, names that are there twice: each fails the check.
  std::vector<Refused> refused;
  /// Platforms that plugins list and that have no packs here: not a failure unless asked for by
  /// name.
  std::vector<std::string> not_built;
  Coverage coverage;

  bool ok() const;
  std::string text() const;
  std::string json() const;
};

/// Loads nothing, runs nothing.
CheckReport check(const CheckOptions& options);

}  // namespace atlas::kernel_check
