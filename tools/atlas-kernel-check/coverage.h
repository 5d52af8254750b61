// Which kernel is there on which platform: the table of docs/kernels.md.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/plugin_host/audit.h"

namespace atlas::kernel_check {

/// Collects what platforms have and what is asked of them, platform by platform.
class Coverage {
 public:
  /// `needs`: of the core and of all plugins that list the platform.
  void add(const std::string& platform, const std::vector<plugin_host::KernelNeed>& needs,
           const plugin_host::PackIndex& packs);
  /// A platform without packs here; its column says so.
  void add_absent(const std::string& platform) { absent_.insert(platform); }

  /// Markdown: a table whose rows are the kernels of an owner that have the same in all columns,
  /// then what runs where an optional kernel is absent, then kernels that nobody names.
  std::string markdown() const;

 private:
  using Cells = std::map<std::string, std::string>;  // by platform
  std::vector<std::string> columns() const;
  std::map<std::string, std::map<std::string, Cells>> owners_;  // owner: kernel: cells
  std::set<std::string> platforms_, absent_, notes_, unnamed_;
};

}  // namespace atlas::kernel_check
