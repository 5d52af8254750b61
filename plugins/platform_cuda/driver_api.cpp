// dlopen, and the driver's own way to look its entry points up.
#include "plugins/platform_cuda/driver_api.h"

#include <dlfcn.h>

#include <string>

#include "plugins/sdk/guard.h"

namespace atlas::platform_cuda {

using sdk::Failure;

DriverApi open_driver() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw Failure(ATLAS_FAILED_PRECONDITION, std::string("CUDA's driver cannot be opened: ") +
                                                 (reason == nullptr ? "no reason given" : reason) +
                                                 "; " + kDriverAdvice);
  }
  const auto find = reinterpret_cast<CuGetProcAddress>(::dlsym(library, kCuGetProcAddressSymbol));
  if (find == nullptr) {
    throw Failure(ATLAS_FAILED_PRECONDITION,
                  std::string("the driver has no ") + kCuGetProcAddressSymbol +
                      ", so it is older than CUDA 12.0; " + kDriverAdvice);
  }
  DriverApi api;
  std::string missing;
  const auto look_up = [&](const char* name, int version) {
    void* function = nullptr;
    int status = 0;
    return find(name, &function, version, 0, &status) == kCuSuccess ? function : nullptr;
  };
#define ATLAS_CUDA_FIND(name, version, arguments)                           \
  api.name = reinterpret_cast<decltype(api.name)>(look_up(#name, version)); \
  if (api.name == nullptr) missing += std::string(missing.empty() ? "" : ", ") + #name;
  ATLAS_CUDA_ENTRY_POINTS(ATLAS_CUDA_FIND)
#undef ATLAS_CUDA_FIND
#define ATLAS_CUDA_FIND(name, version, arguments) \
  api.name = reinterpret_cast<decltype(api.name)>(look_up(#name, version));
  ATLAS_CUDA_OPTIONAL_ENTRY_POINTS(ATLAS_CUDA_FIND)
#undef ATLAS_CUDA_FIND
  if (missing.empty()) return api;
  int version = 0;
  if (api.cuDriverGetVersion != nullptr) (void)api.cuDriverGetVersion(&version);
  throw Failure(ATLAS_FAILED_PRECONDITION, "the driver, of CUDA " + version_text(version) +
                                               ", lacks " + missing + "; " + kDriverAdvice);
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace atlas::platform_cuda
