// Descriptors, then one audit a platform.
#include "tools/atlas-kernel-check/check.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "daemon/plugin_host/json.h"
#include "plugins/sdk/toolchain.h"

namespace atlas::kernel_check {
namespace {

namespace fs = std::filesystem;
using plugin_host::AuditReport;
using plugin_host::PackIndex;
using plugin_host::PluginDescriptor;

struct Candidate {
  PluginDescriptor descriptor;
  bool asked_for = false;  // by --plugin, not found in the folder
};

/// A build makes the folders of all its packs at once, and packs only as they are asked for.
bool has_pack(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const fs::path extension = at->path().extension();
    if (extension == ".so" || extension == ".cubin" || extension == ".hsaco") return true;
  }
  return false;
}

class Checker {
 public:
  explicit Checker(const CheckOptions& options) : options_(options) {}

  CheckReport run() {
    for (const std::string& file : options_.plugin_files) add(file, true);
    for (const std::string& file : files_of(options_.plugin_folder)) add(file, false);
    refuse_duplicates();
    for (const std::string& platform : platforms()) audit_platform(platform);
    for (const std::string& platform : report_.not_built) report_.coverage.add_absent(platform);
    return std::move(report_);
  }

 private:
  std::vector<std::string> files_of(const std::string& folder) {
    std::vector<std::string> files;
    if (folder.empty()) return files;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      if (at->path().extension() == ".so") files.push_back(at->path().string());
    }
    if (error) report_.refused.push_back({folder, "cannot be listed: " + error.message()});
    std::sort(files.begin(), files.end());
    return files;
  }

  void add(const std::string& file, bool asked_for) {
    std::error_code ignored;
    const fs::path identity = fs::weakly_canonical(file, ignored);
    if (!seen_.insert(identity.string()).second) return;
    auto descriptor = plugin_host::read_descriptor(file);
    if (!descriptor) return refuse(file, descriptor.error());
    const Status same = plugin_host::check_toolchain(*descriptor, sdk::kToolchain);
    if (!same.ok()) return refuse(file, same);
    candidates_.push_back({std::move(*descriptor), asked_for});
  }

  void refuse_duplicates() {
    std::map<std::string, std::string> first;
    for (const Candidate& candidate : candidates_) {
      const auto [where, added] =
          first.emplace(candidate.descriptor.name, candidate.descriptor.file);
      if (added) continue;
      report_.refused.push_back(
          {candidate.descriptor.file,
           fmt::format("plugin '{}' is there twice, as '{}' and '{}'", candidate.descriptor.name,
                       where->second, candidate.descriptor.file)});
    }
  }

  // The one asked for, or all that have packs; what plugins list beyond those is noted.
  std::vector<std::string> platforms() {
    if (!options_.platform.empty()) return {options_.platform};
    std::set<std::string> listed;
    for (const Candidate& candidate : candidates_) {
      listed.insert(candidate.descriptor.platforms.begin(), candidate.descriptor.platforms.end());
    }
    std::set<std::string> built;
    std::error_code error;
    for (fs::directory_iterator at(options_.kernel_folder, error), end; !error && at != end;
         at.increment(error)) {
      std::error_code ignored;
      if (at->is_directory(ignored) && has_pack(at->path()))
        built.insert(at->path().filename().string());
    }
    // Plugins alone may bring all the packs that they need.
    if (options_.only_plugins) {
      built = listed;
    } else if (error || built.empty()) {
      report_.refused.push_back(
          {options_.kernel_folder,
           error ? "cannot be listed: " + error.message() : "holds no folder with kernel packs"});
    }
    std::set_difference(listed.begin(), listed.end(), built.begin(), built.end(),
                        std::back_inserter(report_.not_built));
    return {built.begin(), built.end()};
  }

  void audit_platform(const std::string& platform) {
    const std::string folder = options_.kernel_folder + "/" + platform;
    Result<PackIndex> packs = PackIndex::read(platform, folder);
    if (!packs && options_.only_plugins && packs.error().code() == Code::kNotFound) {
      packs = PackIndex::none(platform);
    }
    if (!packs) return refuse(folder, packs.error());
    std::vector<PluginDescriptor> plugins;
    for (const Candidate& candidate : candidates_) {
      const bool lists = candidate.descriptor.lists(platform);
      const bool must = candidate.asked_for && !options_.platform.empty();
      if (!lists && !must) continue;
      const Status added =
          packs->add_plugin_packs(candidate.descriptor.file, candidate.descriptor.name);
      if (!added.ok()) refuse(candidate.descriptor.file, added);
      plugins.push_back(candidate.descriptor);
    }
    auto needs = options_.only_plugins ? std::vector<plugin_host::KernelNeed>{}
                                       : plugin_host::core_needs(platform);
    report_.platforms.push_back(plugin_host::audit(platform, plugins, needs, *packs));
    for (const PluginDescriptor& plugin : plugins) {
      const auto more = plugin_host::needs_of(plugin, platform);
      needs.insert(needs.end(), more.begin(), more.end());
    }
    report_.coverage.add(platform, needs, *packs);
  }

  void refuse(const std::string& file, const Status& status) {
    report_.refused.push_back({file, status.message()});
  }

  const CheckOptions& options_;
  CheckReport report_;
  std::vector<Candidate> candidates_;
  std::set<std::string> seen_;
};

std::string text_of(const AuditReport& audit) {
  std::string text = fmt::format("{:<12} {:<8} {} kernels of {} plugins in {} packs\n",
                                 audit.platform, audit.ok() ? "good" : "FAILED",
                                 audit.kernels_checked, audit.plugins.size(), audit.packs.size());
  for (const auto& problem : audit.problems) {
    text += fmt::format("{:<12} {:<8} {}\n", "", "problem", problem.text());
  }
  for (const auto& fallback : audit.fallbacks) {
    text +=
        fmt::format("{:<12} {:<8} '{}' of '{}' is absent ({}): '{}' runs instead\n", "", "fallback",
                    fallback.kernel, fallback.plugin, fallback.reason, fallback.fallback);
  }
  return text;
}

}  // namespace

bool CheckReport::ok() const {
  return refused.empty() &&
         std::all_of(platforms.begin(), platforms.end(), [](const auto& p) { return p.ok(); });
}

std::string CheckReport::text() const {
  std::string text;
  for (const AuditReport& audit : platforms) text += text_of(audit);
  for (const std::string& platform : not_built) {
    text += fmt::format("{:<12} {:<8} no packs here; plugins list it, and {}\n", platform, "-",
                        plugin_host::how_to_build(platform));
  }
  for (const Refused& entry : refused) text += fmt::format("refused      {}\n", entry.reason);
  return text;
}

std::string CheckReport::json() const {
  nlohmann::ordered_json json = {{"ok", ok()}};
  json["platforms"] = nlohmann::ordered_json::array();
  for (const AuditReport& audit : platforms) {
    json["platforms"].push_back(nlohmann::ordered_json::parse(plugin_host::to_json(audit)));
  }
  json["refused"] = nlohmann::ordered_json::array();
  for (const Refused& entry : refused) {
    json["refused"].push_back({{"file", entry.file}, {"reason", entry.reason}});
  }
  json["not_built"] = not_built;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

CheckReport check(const CheckOptions& options) { return Checker(options).run(); }

}  // namespace atlas::kernel_check
