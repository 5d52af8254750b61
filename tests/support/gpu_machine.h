// GpuMachine: memory and launches of one GPU platform for kernel tests. What runs the kernels is a
// backend: the emulator with the platform's emulated pack, or, with `--device PLATFORM` on the
// program's command line, a device with its real packs (gpu_device.h). Programs that use it depend
// on atlas_emulated_<platform> and link atlas_simt.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/common/gpu_shapes.h"
#include "tests/support/simt/emulated_pack.h"

namespace atlas::test {

/// How a test launches beside its shape.
struct GpuLaunch {
  kernels::LaunchShape shape;
  uint64_t seed = 0;                     // another order of blocks and warps for each; 0: ascending
  bool cooperative = false;              // all blocks run together and may wait for each other
  std::function<bool()> host = nullptr;  // simt::Launch::host
};

class GpuBackend {
 public:
  virtual ~GpuBackend() = default;
  /// `values` null: memory that nothing has written.
  virtual void* add(const std::string& name, const void* values, uint64_t bytes, bool writable) = 0;
  /// The bytes of a buffer, and for each whether anything was written there.
  virtual void copy_out(const void* buffer, std::vector<uint8_t>& bytes,
                        std::vector<bool>& written) = 0;
  virtual void copy_in(const void* buffer, uint64_t offset, const void* from, uint64_t bytes) = 0;
  virtual simt::Report run(const std::string& kernel, uint64_t params_digest, const void* params,
                           uint64_t params_bytes, const GpuLaunch& launch) = 0;
};

class EmulatedBackend final : public GpuBackend {
 public:
  explicit EmulatedBackend(const std::string& platform) : pack_(platform) {}

  void* add(const std::string& name, const void* values, uint64_t bytes, bool writable) override {
    if (values == nullptr) return machine_.output<uint8_t>(name, bytes);
    const std::vector<uint8_t> all(static_cast<const uint8_t*>(values),
                                   static_cast<const uint8_t*>(values) + bytes);
    if (writable) return machine_.in_out(name, all);
    return const_cast<uint8_t*>(machine_.input(name, all));
  }
  void copy_out(const void* buffer, std::vector<uint8_t>& bytes,
                std::vector<bool>& written) override {
    bytes = machine_.contents(static_cast<const uint8_t*>(buffer));
    written.resize(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) written[i] = machine_.is_written(buffer, i, 1);
  }
  void copy_in(const void* buffer, uint64_t offset, const void* from, uint64_t bytes) override {
    const auto* values = static_cast<const uint8_t*>(from);
    machine_.write(static_cast<const uint8_t*>(buffer),
                   std::vector<uint8_t>(values, values + bytes), offset);
  }
  simt::Report run(const std::string& kernel, uint64_t params_digest, const void* params, uint64_t,
                   const GpuLaunch& launch) override {
    if (pack_.params_digest(kernel) != params_digest) {
      throw std::runtime_error("kernel " + kernel + " takes other parameters");
    }
    const kernels::LaunchShape& shape = launch.shape;
    return machine_.run_raw(pack_.kernel(kernel), params,
                            {{shape.x, shape.y, shape.z},
                             shape.threads,
                             shape.shared_bytes,
                             launch.cooperative,
                             launch.seed,
                             launch.host});
  }

 private:
  EmulatedPack pack_;
  simt::Machine machine_;
};

/// The device of `--device` (gpu_target.h); null: the program was not asked to use one.
std::unique_ptr<GpuBackend> make_device_backend(const std::string& platform);

class GpuMachine {
 public:
  explicit GpuMachine(const std::string& platform) : backend_(make_device_backend(platform)) {
    if (backend_ == nullptr) backend_ = std::make_unique<EmulatedBackend>(platform);
  }

  /// Memory that kernels read only.
  template <typename T>
  const T* input(const std::string& name, const std::vector<T>& values) {
    return static_cast<const T*>(add(name, values.data(), values.size() * sizeof(T), false));
  }
  /// Memory that nothing has written: kernels may not read what they have not written.
  template <typename T>
  T* output(const std::string& name, size_t count) {
    return static_cast<T*>(add(name, nullptr, count * sizeof(T), true));
  }
  /// Memory with contents that kernels may change.
  template <typename T>
  T* in_out(const std::string& name, const std::vector<T>& values) {
    return static_cast<T*>(add(name, values.data(), values.size() * sizeof(T), true));
  }
  /// What a buffer holds, from its begin. `unwritten` stands where nothing was written.
  template <typename T>
  std::vector<T> contents(const T* buffer, T unwritten = T()) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<uint8_t> bytes;
    std::vector<bool> written;
    backend_->copy_out(buffer, bytes, written);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    for (size_t i = 0; i < values.size() * sizeof(T); ++i) {
      if (!written[i]) values[i / sizeof(T)] = unwritten;
    }
    return values;
  }
  /// Puts values into a buffer from element `first` on, between launches.
  template <typename T>
  void write(const T* buffer, const std::vector<T>& values, size_t first = 0) {
    backend_->copy_in(buffer, first * sizeof(T), values.data(), values.size() * sizeof(T));
  }

  /// Runs one launch to its end. Throws std::runtime_error if the pack has no such kernel or the
  /// kernel takes another parameter struct than the one with `digest`.
  template <typename Params>
  simt::Report run(const std::string& kernel, const Params& params, uint64_t digest,
                   const GpuLaunch& launch) {
    return backend_->run(kernel, digest, &params, sizeof(Params), launch);
  }
  /// The same with parameters of any struct.
  simt::Report run_raw(const std::string& kernel, uint64_t digest, const void* params,
                       uint64_t params_bytes, const GpuLaunch& launch) {
    return backend_->run(kernel, digest, params, params_bytes, launch);
  }

 private:
  void* add(const std::string& name, const void* values, uint64_t bytes, bool writable) {
    static const uint8_t kNothing = 0;
    return backend_->add(name, values == nullptr && !writable ? &kNothing : values, bytes,
                         writable);
  }
  std::unique_ptr<GpuBackend> backend_;
};

}  // namespace atlas::test
