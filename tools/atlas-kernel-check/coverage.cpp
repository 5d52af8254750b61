// Cells of the coverage table, and its text.
#include "tools/atlas-kernel-check/coverage.h"

#include <algorithm>

#include "kernels/common/platforms.h"

namespace atlas::kernel_check {

using plugin_host::KernelNeed;
using plugin_host::PackIndex;

void Coverage::add(const std::string& platform, const std::vector<KernelNeed>& needs,
                   const PackIndex& packs) {
  platforms_.insert(platform);
  std::set<std::string, std::less<>> named;
  for (const KernelNeed& need : needs) {
    named.insert(need.kernel);
    std::string& cell = owners_[need.plugin][need.kernel][platform];
    const plugin_host::PackKernel* found = packs.find(need.kernel);
    if (found != nullptr) {
      cell = found->digest == need.digest ? "yes" : "other parameters";
    } else if (need.required) {
      cell = "**absent**";
    } else {
      cell = "optional";
      notes_.insert(fmt::format("`{}` of {} on {}: {}; `{}` runs instead", need.kernel, need.plugin,
                                platform, need.reason, need.fallback));
    }
  }
  for (const auto& [name, kernel] : packs.kernels()) {
    if (!named.contains(name)) unnamed_.insert(fmt::format("`{}` ({})", name, platform));
  }
}

// Those of the project in its order, then others.
std::vector<std::string> Coverage::columns() const {
  std::set<std::string> left = platforms_;
  left.insert(absent_.begin(), absent_.end());
  std::vector<std::string> all;
  for (const kernels::Platform& platform : kernels::kPlatforms) {
    if (left.erase(std::string(platform.name)) != 0) all.emplace_back(platform.name);
  }
  all.insert(all.end(), left.begin(), left.end());
  return all;
}

std::string Coverage::markdown() const {
  const std::vector<std::string> columns = this->columns();
  std::string text = "| of | kernels |";
  for (const std::string& platform : columns) text += fmt::format(" {} |", platform);
  text += "\n| --- | --- |";
  for (size_t i = 0; i < columns.size(); ++i) text += " --- |";
  text += "\n";
  for (const auto& [owner, kernels] : owners_) {
    // Kernels by their cells, in the order of the first one's name.
    std::vector<std::pair<std::string, std::vector<std::string>>> rows;
    for (const auto& [kernel, cells] : kernels) {
      std::string row;
      for (const std::string& platform : columns) {
        const auto cell = cells.find(platform);
        const char* missing = absent_.contains(platform) ? "not built here" : "–";
        row += fmt::format(" {} |", cell != cells.end() ? cell->second : missing);
      }
      const auto same = std::find_if(rows.begin(), rows.end(),
                                     [&](const auto& other) { return other.first == row; });
      if (same != rows.end()) {
        same->second.push_back(kernel);
      } else {
        rows.push_back({row, {kernel}});
      }
    }
    for (const auto& [cells, names] : rows) {
      text += fmt::format("| {} | `{}` |{}\n", owner, fmt::join(names, "` `"), cells);
    }
  }
  if (!notes_.empty()) text += "\n";
  for (const std::string& note : notes_) text += fmt::format("- {}\n", note);
  if (!unnamed_.empty()) {
    text += fmt::format("\nIn packs, but named by nobody: {}.\n", fmt::join(unnamed_, ", "));
  }
  return text;
}

}  // namespace atlas::kernel_check
