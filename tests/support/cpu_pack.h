// The CPU kernel pack as tests use it: opened from its file, a kernel run over a grid by some
// threads.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "tests/support/build_folder.h"

namespace atlas::test {

/// How a grid is given to threads: thread t takes every threads-th range of `chunk` tasks.
struct Split {
  uint32_t threads = 1;
  uint32_t chunk = 0;  // 0: one range a thread
};

/// 64-byte aligned memory of a fixed size, zeroed.
class Aligned {
 public:
  explicit Aligned(size_t bytes) : size_(bytes) {
    data_.reset(static_cast<std::byte*>(::operator new(std::max<size_t>(bytes, 64), kAlign)));
    std::fill_n(data_.get(), bytes, std::byte{0});
  }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlign); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
};

class CpuPack {
 public:
  /// Throws std::runtime_error if the file cannot be opened. Programs that use it depend on the
  /// target atlas_kernels_cpu (add_dependencies).
  explicit CpuPack(const std::string& path = build_folder() + "/lib/atlas/kernels/cpu/atlas_cpu.so")
      : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }

  bool has(const std::string& name) const {
    return dlsym(handle_, ("atlas_kernel_" + name).c_str()) != nullptr;
  }
  kernels::cpu::Kernel kernel(const std::string& name) const {
    return reinterpret_cast<kernels::cpu::Kernel>(symbol("atlas_kernel_" + name));
  }
  uint64_t params_digest(const std::string& name) const {
    return *static_cast<const uint64_t*>(symbol("atlas_params_" + name));
  }

  /// Runs tasks [0, tasks) of `name` and waits. Scratch is filled with garbage first, since kernels
  /// may not count on its contents.
  template <typename Params>
  void run(const std::string& name, const Params& params, uint32_t tasks, Split split = {},
           size_t scratch_bytes = 0) const {
    run_raw(name, &params, tasks, split, scratch_bytes);
  }
  void run_raw(const std::string& name, const void* params, uint32_t tasks, Split split = {},
               size_t scratch_bytes = 0) const {
    const kernels::cpu::Kernel function = kernel(name);
    const uint32_t threads = std::max(1u, split.threads);
    const uint32_t chunk =
        split.chunk != 0 ? split.chunk : std::max(1u, (tasks + threads - 1) / threads);
    const auto work = [&](uint32_t thread) {
      Aligned scratch(scratch_bytes);
      std::fill_n(scratch.data(), scratch_bytes, std::byte{0xff});
      for (uint64_t begin = uint64_t{thread} * chunk; begin < tasks;
           begin += uint64_t{threads} * chunk) {
        function(params, static_cast<uint32_t>(begin),
                 static_cast<uint32_t>(std::min<uint64_t>(tasks, begin + chunk)), scratch.data());
      }
    };
    std::vector<std::jthread> others;
    for (uint32_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    work(0);
  }

 private:
  void* symbol(const std::string& name) const {
    void* found = dlsym(handle_, name.c_str());
    if (found == nullptr) throw std::runtime_error("the pack has no " + name);
    return found;
  }
  void* handle_;  // never closed: kernels may be in use until exit
};

}  // namespace atlas::test
