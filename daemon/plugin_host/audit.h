// The kernel audit: every kernel that a plan or a plugin names, against what the packs hold.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/plugin_host/descriptor.h"
#include "daemon/plugin_host/packs.h"

namespace atlas::plugin_host {

/// One kernel that somebody will launch.
struct KernelNeed {
  std::string plugin;  // or "core"
  std::string kernel;
  uint64_t digest = 0;  // of the parameter struct that the launcher fills
  bool required = true;
  std::string reason;    // of an optional one: why it may be absent
  std::string fallback;  // and what runs then
};

/// The kernels that a descriptor lists for one platform.
std::vector<KernelNeed> needs_of(const PluginDescriptor& descriptor, std::string_view platform);
/// The core's kernels that a platform must have (kernels/common/core_kernels.h).
std::vector<KernelNeed> core_needs(std::string_view platform);

enum class ProblemKind { kPlatformNotListed, kKernelAbsent, kDigestDiffers };
/// "platform_not_listed", "kernel_absent", "digest_differs": as JSON spells it.
std::string_view problem_name(ProblemKind kind);

struct AuditProblem {
  ProblemKind kind = ProblemKind::kKernelAbsent;
  std::string plugin;
  std::string kernel;
  uint64_t wanted = 0;  // digests, of kDigestDiffers
  uint64_t found = 0;
  std::string file;                    // the pack that holds the kernel
  std::vector<std::string> available;  // near kernels; of kPlatformNotListed, the platforms listed
  std::string text() const;            // one sentence with all of this
};

/// An optional kernel that is absent, and what runs instead.
struct AuditFallback {
  std::string plugin;
  std::string kernel;
  std::string reason;
  std::string fallback;
};

struct AuditReport {
  std::string platform;
  std::vector<std::string> plugins;
  std::vector<PackFile> packs;
  size_t kernels_checked = 0;
  std::vector<AuditProblem> problems;
  std::vector<AuditFallback> fallbacks;

  bool ok() const { return problems.empty(); }
  /// Ok, or one kFailedPrecondition that holds every problem.
  Status to_status() const;
  /// The kernel to launch where `plugin` names `kernel`: itself, or where its fallbacks lead;
  /// "core" if they end there.
  std::string kernel_to_run(std::string_view plugin, std::string_view kernel) const;
};

/// Looks up every need, the plugins' own (`plugins`) and further ones (`needs`: the core's, the
/// plan's). Collects all problems; a need given twice is looked at once. An optional kernel that is
/// absent becomes a fallback; one with another digest is a problem, for what was built disagrees.
AuditReport audit(const std::string& platform, std::span<const PluginDescriptor> plugins,
                  std::span<const KernelNeed> needs, const PackIndex& packs);

}  // namespace atlas::plugin_host
