// dlopen and dlsym: HIP's entry points are plain symbols.
#include "plugins/platform_hip/runtime_api.h"

#include <dlfcn.h>

#include "plugins/sdk/guard.h"

namespace atlas::platform_hip {
namespace {

constexpr const char* kLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};

// The offsets of HIP's own header: where this struct differs, so does its size or a place below.
static_assert(sizeof(HipDeviceProperties) == 1472);
static_assert(offsetof(HipDeviceProperties, total_memory) == 288);
static_assert(offsetof(HipDeviceProperties, max_threads_per_block) == 320);
static_assert(offsetof(HipDeviceProperties, multiprocessors) == 388);
static_assert(offsetof(HipDeviceProperties, architecture) == 1160);

void* open_library() {
  std::string reasons;
  for (const char* name : kLibraries) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    const char* reason = ::dlerror();
    reasons += std::string(reasons.empty() ? "" : "; ") + (reason == nullptr ? name : reason);
  }
  throw sdk::Failure(ATLAS_FAILED_PRECONDITION,
                     "HIP's runtime cannot be opened: " + reasons + "; " + kRuntimeAdvice);
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10'000'000) + "." + std::to_string(version / 100'000 % 100);
}

RuntimeApi open_runtime() {
  void* library = open_library();
  RuntimeApi api;
  std::string missing;
#define ATLAS_HIP_FIND(name, result, arguments)                             \
  api.name = reinterpret_cast<decltype(api.name)>(::dlsym(library, #name)); \
  if (api.name == nullptr) missing += std::string(missing.empty() ? "" : ", ") + #name;
  ATLAS_HIP_ENTRY_POINTS(ATLAS_HIP_FIND)
#undef ATLAS_HIP_FIND
#define ATLAS_HIP_FIND(name, result, arguments) \
  api.name = reinterpret_cast<decltype(api.name)>(::dlsym(library, #name));
  ATLAS_HIP_OPTIONAL_ENTRY_POINTS(ATLAS_HIP_FIND)
#undef ATLAS_HIP_FIND
  if (missing.empty()) return api;
  int version = 0;
  if (api.hipRuntimeGetVersion != nullptr) (void)api.hipRuntimeGetVersion(&version);
  throw sdk::Failure(ATLAS_FAILED_PRECONDITION, "the HIP runtime, version " +
                                                    version_text(version) + ", lacks " + missing +
                                                    "; " + kRuntimeAdvice);
}

}  // namespace atlas::platform_hip
