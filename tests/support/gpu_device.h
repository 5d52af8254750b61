// Kernel tests on a device: a platform plugin's device, the real packs of the platform, and buffers
// that show what a kernel should not have done.
//
// A launch runs twice, as an eager step over one pattern in all memory that nothing has written,
// and as a graph over another. So it is known, to the byte, what was written; and a result that
// depends on unwritten memory, on luck, or on the way it was launched differs between the two.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/device.h"
#include "tests/support/gpu_machine.h"

namespace atlas::test {

/// An open device with the packs of its platform.
class GpuDevice {
 public:
  /// `digests`: of the kernels' parameters, by name; empty: they are not checked.
  GpuDevice(std::shared_ptr<Device> device, const std::vector<std::string>& packs,
            std::map<std::string, uint64_t> digests);
  /// Opens `platform` through its plugin of this build, with its packs. Throws std::runtime_error.
  static std::shared_ptr<GpuDevice> open(const std::string& platform);

  const std::shared_ptr<Device>& device() const { return device_; }
  /// One for launches, and one for what the host does while a launch runs.
  Stream& stream() { return stream_; }
  Stream& side() { return side_; }
  /// Throws std::runtime_error: no such kernel, or one with other parameters.
  AtlasKernel kernel(const std::string& name, uint64_t params_digest);

 private:
  std::shared_ptr<Device> device_;
  Stream stream_, side_;
  std::vector<Module> modules_;
  std::map<std::string, uint64_t> digests_;
};

class DeviceBackend final : public GpuBackend {
 public:
  /// `guard_bytes` before and behind each buffer are watched; 0 leaves that to a tool that knows
  /// the bounds of allocations, as compute-sanitizer does.
  DeviceBackend(std::shared_ptr<GpuDevice> gpu, uint64_t guard_bytes);

  void* add(const std::string& name, const void* values, uint64_t bytes, bool writable) override;
  void copy_out(const void* buffer, std::vector<uint8_t>& bytes,
                std::vector<bool>& written) override;
  void copy_in(const void* buffer, uint64_t offset, const void* from, uint64_t bytes) override;
  simt::Report run(const std::string& kernel, uint64_t params_digest, const void* params,
                   uint64_t params_bytes, const GpuLaunch& launch) override;

 private:
  struct Buffer {
    std::string name;
    DeviceBuffer memory;
    bool writable;
    std::vector<uint8_t> values;  // what it holds, without the guards
    std::vector<bool> written;
  };
  Buffer& at(const void* buffer);
  uint64_t address(const Buffer& buffer) const { return buffer.memory.address() + guard_bytes_; }
  void place(uint8_t pattern);
  std::vector<std::vector<uint8_t>> collect(simt::Report& report);
  void run_once(const Launch& launch, StepMode mode, const std::function<bool()>& host);
  void merge(const std::vector<std::vector<uint8_t>>& eager,
             const std::vector<std::vector<uint8_t>>& graph, const std::string& kernel,
             simt::Report& report);
  void take_over(const std::vector<std::vector<uint8_t>>& found);

  std::shared_ptr<GpuDevice> gpu_;
  uint64_t guard_bytes_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  bool running_ = false;
};

}  // namespace atlas::test
