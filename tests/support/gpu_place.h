// StepPlace of a GPU platform: buffers and records on a GpuMachine.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/gpu_machine.h"
#include "tests/support/step_place.h"

namespace atlas::test {

class GpuPlace final : public StepPlace {
 public:
  /// `seed`: of the order of blocks and warps.
  GpuPlace(const std::string& platform, uint64_t seed)
      : platform_(platform), seed_(seed), machine_(platform) {}
  const char* platform() const override { return platform_.c_str(); }
  float* floats(const std::string& name, size_t count) override {
    return machine_.output<float>(name, count);
  }
  void* bytes(const std::string& name, const void* from, size_t count) override {
    const auto* begin = static_cast<const uint8_t*>(from);
    return machine_.in_out(name, std::vector<uint8_t>(begin, begin + count));
  }
  void write(void* to, const void* from, size_t count) override {
    const auto* begin = static_cast<const uint8_t*>(from);
    machine_.write(static_cast<uint8_t*>(to), std::vector<uint8_t>(begin, begin + count));
  }
  void read(const void* from, void* to, size_t count) override {
    const std::vector<uint8_t> all =
        machine_.contents(static_cast<const uint8_t*>(from), uint8_t{0xff});
    std::memcpy(to, all.data(), count);
  }
  /// Throws std::runtime_error with the report if a launch has a fault.
  void run(const PlannedRecords& records, Split) override {
    records.each([&](const AtlasRecord& record, const void* params) {
      GpuLaunch launch;
      launch.shape = {record.grid[0], record.grid[1], record.grid[2], record.block[0],
                      record.shared_bytes};
      launch.seed = seed_;
      const auto report =
          machine_.run_raw(record.kernel, record.params_digest, params, record.params_size, launch);
      if (!report.ok()) throw std::runtime_error(report.text());
    });
  }

 private:
  std::string platform_;
  uint64_t seed_;
  GpuMachine machine_;
};

}  // namespace atlas::test
