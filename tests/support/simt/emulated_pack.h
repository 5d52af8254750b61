// A GPU pack whose kernels run in the emulator: opened from its file. Programs that use it depend
// on the targets atlas_emulated_<platform> (add_dependencies) and link atlas_simt.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "tests/support/build_folder.h"
#include "tests/support/gpu_target.h"
#include "tests/support/simt/machine.h"

namespace atlas::test {

class EmulatedPack {
 public:
  /// Throws std::runtime_error if the file cannot be opened.
  explicit EmulatedPack(const std::string& platform)
      : handle_(dlopen((build_folder() + "/tests/emulated/" + platform + ".so").c_str(),
                       RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }

  simt::Kernel kernel(const std::string& name) const {
    return {name, reinterpret_cast<void (*)(const void*)>(symbol("atlas_kernel_" + name)),
            *static_cast<const uint32_t*>(symbol("atlas_threads_" + name))};
  }
  uint64_t params_digest(const std::string& name) const {
    return *static_cast<const uint64_t*>(symbol("atlas_params_" + name));
  }

 private:
  void* symbol(const std::string& name) const {
    void* found = dlsym(handle_, name.c_str());
    if (found == nullptr) throw std::runtime_error("the pack has no " + name);
    return found;
  }
  void* handle_;  // never closed: fibers may stand in its kernels
};

}  // namespace atlas::test
