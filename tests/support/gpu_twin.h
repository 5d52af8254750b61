// GpuTwin: the memory of one kernel twice, for the CPU pack and for a GPU machine, and the same
// launch on both.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/gpu_machine.h"

namespace atlas::test {

/// Bits of SCALAR, without fused multiply-add, differ where sums are made.
inline bool cpu_has_fma() { return cpu_targets().front().name != "SCALAR"; }

/// Whether all bits are equal, but for the payload of a NaN.
inline bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return true;
}
template <typename T>
bool same_numbers(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// An array on both sides.
template <typename T>
struct Both {
  std::shared_ptr<std::vector<T>> host;
  T* gpu = nullptr;
  /// Its begin, for parameters of one side.
  T* at(bool on_gpu) const { return on_gpu ? gpu : host->data(); }
};

class GpuTwin {
 public:
  explicit GpuTwin(const std::string& platform) : machine_(platform) {}

  GpuMachine& machine() { return machine_; }
  const CpuPack& pack() const { return pack_; }

  template <typename T>
  Both<T> input(const std::string& name, const std::vector<T>& values) {
    return {std::make_shared<std::vector<T>>(values), const_cast<T*>(machine_.input(name, values))};
  }
  template <typename T>
  Both<T> in_out(const std::string& name, const std::vector<T>& values) {
    return {std::make_shared<std::vector<T>>(values), machine_.in_out(name, values)};
  }
  template <typename T>
  bool same(const Both<T>& both) {
    return same_numbers(*both.host, machine_.contents(both.gpu));
  }

  /// Runs `tasks` of the CPU's kernel and the GPU's grid for `rows`; `fill(on_gpu)` makes the
  /// parameters of a side. The GPU's report must have no faults.
  template <typename Params, typename Fill>
  void run(const std::string& name, uint64_t digest, uint32_t tasks, uint32_t rows,
           const Fill& fill, uint64_t seed = 0) {
    pack_.run(name, static_cast<const Params&>(fill(false)), tasks);
    run_gpu<Params>(name, digest, rows, fill(true), seed);
  }
  template <typename Params>
  simt::Report run_gpu(const std::string& name, uint64_t digest, uint32_t rows,
                       const Params& params, uint64_t seed = 0,
                       const std::function<bool()>& host = nullptr) {
    const auto report =
        machine_.run(name, params, digest,
                     {.shape = kernels::gpu_shape(params, rows), .seed = seed, .host = host});
    INFO(report.text());
    REQUIRE(report.ok());
    return report;
  }

 private:
  CpuPack pack_;
  GpuMachine machine_;
};

}  // namespace atlas::test
