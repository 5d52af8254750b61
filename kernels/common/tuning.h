// Which of several kernels with the same bits takes a product: kernels/<platform>/tuning.yaml as a
// table. Written by `tools/check/tuning --fix`; the files say why, and what was measured.
#pragma once

#include <cstdint>
#include <string_view>

namespace atlas::kernels {

enum class Choice : uint32_t {
  /// Rows of a bucket above which products take the kernel for many rows.
  kLinearMany,
  /// Rows an expert above which products of experts do.
  kExpertsMany,
  /// Rows of a bucket above which products take the kernel of wgmma, where their format has one.
  kLinearWgmma,
  /// Rows an expert above which products of experts do.
  kExpertsWgmma,
  /// Rows above which EXL3's rows are encoded by a launch of their own.
  kExl3Few,
  /// Rows above which EXL3's products take the kernel for many rows.
  kExl3Many,
  /// Rows above which EXL3's rows for experts are encoded by a launch of their own.
  kExl3ExpertsFew,
  /// Rows an expert above which EXL3's products of experts take the kernel for many rows.
  kExl3ExpertsMany,
  /// Rows above which EXL3's products take the kernel of wgmma.
  kExl3Wgmma,
  /// Rows an expert above which EXL3's products of experts take the kernel of wgmma.
  kExl3ExpertsWgmma,
};

/// For products of n outputs and k inputs between these.
struct TuningEntry {
  std::string_view platform;
  Choice choice;
  uint64_t above;
  uint64_t n_least, n_most, k_least, k_most;
};

inline constexpr TuningEntry kTuning[] = {
    {"h200", Choice::kLinearMany, 48, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kExpertsMany, 16, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kLinearWgmma, 32, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kExpertsWgmma, 16, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kExl3Few, 0, 65536, 4294967295, 0, ~0ull},
    {"h200", Choice::kExl3Few, 2, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kExl3Many, 24, 4096, 4294967295, 0, ~0ull},
    {"h200", Choice::kExl3Many, 96, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kExl3ExpertsFew, 20, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kExl3ExpertsMany, 16, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kExl3Wgmma, 40, 0, ~0ull, 0, ~0ull},
    {"h200", Choice::kExl3ExpertsWgmma, 32, 0, ~0ull, 0, ~0ull},
    {"gb10", Choice::kLinearMany, 48, 0, ~0ull, 0, ~0ull},
    {"gb10", Choice::kExpertsMany, 16, 0, ~0ull, 0, ~0ull},
    {"gb10", Choice::kExl3Few, 0, 65536, 4294967295, 0, ~0ull},
    {"gb10", Choice::kExl3Few, 2, 0, ~0ull, 0, ~0ull},
    {"gb10", Choice::kExl3Many, 24, 4096, 4294967295, 0, ~0ull},
    {"gb10", Choice::kExl3Many, 96, 0, ~0ull, 0, ~0ull},
    {"gb10", Choice::kExl3ExpertsFew, 40, 0, ~0ull, 0, ~0ull},
    {"gb10", Choice::kExl3ExpertsMany, 16, 0, ~0ull, 0, ~0ull},
    {"strix-hip", Choice::kLinearMany, 48, 0, ~0ull, 0, ~0ull},
    {"strix-hip", Choice::kExpertsMany, 16, 0, ~0ull, 0, ~0ull},
    {"strix-hip", Choice::kExl3Few, 0, 65536, 4294967295, 0, ~0ull},
    {"strix-hip", Choice::kExl3Few, 2, 0, ~0ull, 0, ~0ull},
    {"strix-hip", Choice::kExl3Many, 32, 0, ~0ull, 0, ~0ull},
    {"strix-hip", Choice::kExl3ExpertsFew, 40, 0, ~0ull, 0, ~0ull},
    {"strix-hip", Choice::kExl3ExpertsMany, 16, 0, ~0ull, 0, ~0ull},
};

/// The number of the first entry that fits; ~0 on a platform that has none.
constexpr uint64_t tuned(std::string_view platform, Choice choice, uint64_t n, uint64_t k) {
  for (const TuningEntry& entry : kTuning) {
    if (entry.platform != platform || entry.choice != choice) continue;
    if (n < entry.n_least || n > entry.n_most || k < entry.k_least || k > entry.k_most) continue;
    return entry.above;
  }
  return ~0ull;
}

}  // namespace atlas::kernels
