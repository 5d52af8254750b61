// The platforms: what each name stands for. Data that the planner, plugins and tests share; who
// asks for a platform that is not here (a test's) gets null and treats it as a CPU.
#pragma once

#include <array>
#include <string_view>

namespace atlas::kernels {

enum class Runtime { kCpu, kCuda, kHip };

struct Platform {
  std::string_view name;
  Runtime runtime;
  std::string_view architecture;  // "" for the CPU, whose pack chooses at run time
};

inline constexpr std::array kPlatforms = {
    Platform{"cpu", Runtime::kCpu, ""},
    Platform{"h200", Runtime::kCuda, "sm_90a"},
    Platform{"gb10", Runtime::kCuda, "sm_121a"},
    Platform{"strix-hip", Runtime::kHip, "gfx1151"},
};

constexpr const Platform* find_platform(std::string_view name) {
  for (const Platform& platform : kPlatforms) {
    if (platform.name == name) return &platform;
  }
  return nullptr;
}

/// Whether records for this platform need blocks and shared memory of a GPU.
constexpr bool is_gpu(std::string_view name) {
  const Platform* platform = find_platform(name);
  return platform != nullptr && platform->runtime != Runtime::kCpu;
}

/// Whether independent records of a step run beside one another there: a HIP graph with branches
/// takes a queue for each and signals between them, which nobody has measured.
constexpr bool runs_beside(std::string_view name) {
  const Platform* platform = find_platform(name);
  return platform != nullptr && platform->runtime == Runtime::kCuda;
}

}  // namespace atlas::kernels
