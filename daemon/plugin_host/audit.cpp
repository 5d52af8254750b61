// Needs against packs.
#include "daemon/plugin_host/audit.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "kernels/common/core_kernels.h"
#include "kernels/common/platforms.h"

namespace atlas::plugin_host {
namespace {

class Auditor {
 public:
  Auditor(const PackIndex& packs, AuditReport& report) : packs_(packs), report_(report) {}

  void check_plugin(const PluginDescriptor& plugin) {
    report_.plugins.push_back(plugin.name);
    if (!plugin.lists(report_.platform)) {
      AuditProblem problem;
      problem.kind = ProblemKind::kPlatformNotListed;
      problem.plugin = plugin.name;
      problem.available = plugin.platforms;
      report_.problems.push_back(std::move(problem));
      return;
    }
    for (const KernelNeed& need : needs_of(plugin, report_.platform)) check(need);
  }

  void check(const KernelNeed& need) {
    if (!seen_.emplace(need.plugin, need.kernel, need.digest).second) return;
    ++report_.kernels_checked;
    AuditProblem problem;
    problem.plugin = need.plugin;
    problem.kernel = need.kernel;
    const PackKernel* kernel = packs_.find(need.kernel);
    if (kernel == nullptr) {
      if (!need.required) {
        report_.fallbacks.push_back({need.plugin, need.kernel, need.reason, need.fallback});
        return;
      }
      problem.kind = ProblemKind::kKernelAbsent;
      problem.available = packs_.near(need.kernel);
      report_.problems.push_back(std::move(problem));
    } else if (kernel->digest != need.digest) {
      problem.kind = ProblemKind::kDigestDiffers;
      problem.wanted = need.digest;
      problem.found = kernel->digest;
      problem.file = kernel->file;
      report_.problems.push_back(std::move(problem));
    }
  }

 private:
  const PackIndex& packs_;
  AuditReport& report_;
  std::set<std::tuple<std::string, std::string, uint64_t>> seen_;
};

}  // namespace

std::vector<KernelNeed> needs_of(const PluginDescriptor& descriptor, std::string_view platform) {
  std::vector<KernelNeed> needs;
  for (const DescriptorKernel& kernel : descriptor.kernels) {
    if (kernel.platform != platform) continue;
    needs.push_back({descriptor.name, kernel.kernel, kernel.digest, kernel.required, kernel.reason,
                     kernel.fallback});
  }
  return needs;
}

std::vector<KernelNeed> core_needs(std::string_view platform) {
  std::vector<KernelNeed> needs;
  const auto need = [&needs](const kernels::CoreKernel& kernel) {
    needs.push_back({"core", kernel.name, kernel.digest, true, "", ""});
  };
  for (const kernels::CoreKernel& kernel : kernels::kCoreKernels) need(kernel);
  if (kernels::is_gpu(platform)) {
    for (const kernels::CoreKernel& kernel : kernels::kGpuCoreKernels) need(kernel);
  }
  return needs;
}

namespace {

std::string absent_kernel(const AuditProblem& problem) {
  std::string text = fmt::format("'{}' of '{}'", problem.kernel, problem.plugin);
  if (!problem.available.empty()) {
    text += fmt::format(" (near: {})", fmt::join(problem.available, ", "));
  }
  return text;
}

}  // namespace

std::string_view problem_name(ProblemKind kind) {
  switch (kind) {
    case ProblemKind::kPlatformNotListed:
      return "platform_not_listed";
    case ProblemKind::kKernelAbsent:
      return "kernel_absent";
    case ProblemKind::kDigestDiffers:
      return "digest_differs";
  }
  return "unknown";
}

std::string AuditProblem::text() const {
  const std::string names = fmt::format("{}", fmt::join(available, ", "));
  switch (kind) {
    case ProblemKind::kPlatformNotListed:
      return fmt::format("plugin '{}' does not list the platform (it lists: {})", plugin, names);
    case ProblemKind::kKernelAbsent:
      return "no pack has " + absent_kernel(*this);
    case ProblemKind::kDigestDiffers:
      return fmt::format(
          "'{}' of '{}' is filled with parameters 0x{:016x}, but read as 0x{:016x} by '{}'", kernel,
          plugin, wanted, found, file);
  }
  return "";
}

Status AuditReport::to_status() const {
  if (ok()) return Status();
  std::vector<std::string> absent;  // of a pack that was not built, many: said in one part
  std::vector<std::string> parts;
  for (const AuditProblem& problem : problems) {
    if (problem.kind == ProblemKind::kKernelAbsent) {
      absent.push_back(absent_kernel(problem));
    } else {
      parts.push_back(problem.text());
    }
  }
  if (!absent.empty()) parts.push_back(fmt::format("no pack has {}", fmt::join(absent, ", ")));
  std::vector<std::string> folders;  // the platform's, and those of plugins with packs of their own
  for (const PackFile& pack : packs) {
    const std::string folder = std::filesystem::path(pack.path).parent_path().string();
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) {
      folders.push_back(folder);
    }
  }
  return failed_precondition(
      "kernel audit of platform '{}' failed, {} problem{}: {}. Looked at: {} pack{} in {} ({}). "
      "Build plugins and packs from one tree, or take the plugin out of the settings",
      platform, problems.size(), problems.size() == 1 ? "" : "s", fmt::join(parts, "; "),
      packs.size(), packs.size() == 1 ? "" : "s",
      folders.empty() ? "no folder" : fmt::format("{}", fmt::join(folders, ", ")),
      how_to_build(platform));
}

std::string AuditReport::kernel_to_run(std::string_view plugin, std::string_view kernel) const {
  std::string name(kernel);
  // Descriptors have no circles, so each fallback is followed at most once.
  for (size_t steps = 0; steps < fallbacks.size(); ++steps) {
    const auto next = std::find_if(fallbacks.begin(), fallbacks.end(), [&](const auto& fallback) {
      return fallback.plugin == plugin && fallback.kernel == name;
    });
    if (next == fallbacks.end()) break;
    name = next->fallback;
  }
  return name;
}

AuditReport audit(const std::string& platform, std::span<const PluginDescriptor> plugins,
                  std::span<const KernelNeed> needs, const PackIndex& packs) {
  AuditReport report;
  report.platform = platform;
  report.packs = packs.files();
  Auditor auditor(packs, report);
  for (const PluginDescriptor& plugin : plugins) auditor.check_plugin(plugin);
  for (const KernelNeed& need : needs) auditor.check(need);
  return report;
}

}  // namespace atlas::plugin_host
