// The primary context of the device is used, as the libraries on top of CUDA do: a second context
// would take memory of its own, and time to switch.
#include "plugins/platform_cuda/cuda_runtime.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/gpu_common/image.h"
#include "plugins/gpu_common/machine_memory.h"
#include "plugins/platform_cuda/driver_api.h"
#include "plugins/sdk/guard.h"

namespace atlas::platform_cuda {
namespace {

using gpu::Answer;
using gpu::Outcome;
using sdk::Failure;

/// The platforms of this plugin by compute capability.
struct Target {
  std::string_view platform;
  int major, minor;
};
constexpr std::array<Target, 2> kTargets = {{{"h200", 9, 0}, {"gb10", 12, 1}}};

std::string capability(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string describe(const DriverApi& api, int result) {
  const char* name = nullptr;
  const char* text = nullptr;
  const bool named = api.cuGetErrorName(result, &name) == kCuSuccess && name != nullptr;
  const bool told = api.cuGetErrorString(result, &text) == kCuSuccess && text != nullptr;
  return std::string(named ? name : "an error without a name") + " (" + std::to_string(result) +
         ")" + (told ? std::string(": ") + text : "");
}

Outcome outcome_of(int result) {
  switch (result) {
    case kCuSuccess:
      return Outcome::kOk;
    case kCuNotReady:
      return Outcome::kNotReady;
    case kCuOutOfMemory:
      return Outcome::kOutOfMemory;
    case kCuNotFound:
      return Outcome::kNotFound;
    case kCuInvalidImage:
    case kCuNoBinaryForGpu:
    case kCuInvalidPtx:
    case kCuJitCompilerNotFound:
    case kCuUnsupportedPtxVersion:
    case kCuJitCompilationDisabled:
    case kCuInvalidSource:
      return Outcome::kBadCode;
    case kCuNotSupported:
      return Outcome::kUnsupported;
    // cuda.h says of these that the process must be ended to go on, or that the device or its
    // context is gone.
    case kCuDeinitialized:
    case kCuDeviceUnavailable:
    case kCuEccUncorrectable:
    case kCuNvlinkUncorrectable:
    case kCuContained:
    case kCuIllegalAddress:
    case kCuLaunchTimeout:
    case kCuContextIsDestroyed:
    case kCuAssert:
    case kCuHardwareStackError:
    case kCuIllegalInstruction:
    case kCuMisalignedAddress:
    case kCuInvalidAddressSpace:
    case kCuInvalidPc:
    case kCuLaunchFailed:
    case kCuTensorMemoryLeak:
    case kCuMpsClientTerminated:
    case kCuExternalDevice:
    case kCuUnknown:
      return Outcome::kLost;
    default:
      return Outcome::kFailed;
  }
}

CuStream stream_of(void* stream) { return static_cast<CuStream>(stream); }
CuEvent event_of(void* event) { return static_cast<CuEvent>(event); }
CuGraph graph_of(void* graph) { return static_cast<CuGraph>(graph); }
CuGraphExec executable_of(void* executable) { return static_cast<CuGraphExec>(executable); }
CuFunction function_of(void* kernel) { return static_cast<CuFunction>(kernel); }

// A call with the name of its entry point, which the error will say.
#define ATLAS_CUDA_CALL(name, ...) \
  Answer { #name, api_.name(__VA_ARGS__) }

class CudaRuntime final : public gpu::Runtime {
 public:
  CudaRuntime(const DriverApi& api, CuDevice device, gpu::Facts facts, CuContext context)
      : api_(api), device_(device), facts_(std::move(facts)), context_(context) {}
  ~CudaRuntime() override {
    if (context_ != nullptr) (void)api_.cuDevicePrimaryCtxRelease(device_);
  }

  const gpu::Facts& facts() const override { return facts_; }
  Outcome outcome(int result) const override { return outcome_of(result); }
  std::string describe(int result) const override { return platform_cuda::describe(api_, result); }

  std::string architecture_of(const std::vector<char>& image) const override {
    constexpr uint16_t kCuda = 190;  // EM_CUDA
    const gpu::ImageHead head = gpu::image_head(image);
    if (head.machine != kCuda) return {};
    // Read off the output of ptxas 13.0 (version 8: bits 8 to 15) and of earlier ones (bits 0 to
    // 7).
    const uint32_t sm = head.abi_version >= 8 ? head.flags >> 8 & 0xff : head.flags & 0xff;
    return "sm_" + std::to_string(sm);
  }

  Answer bind() override { return ATLAS_CUDA_CALL(cuCtxSetCurrent, context_); }
  void abandon() override { context_ = nullptr; }

  Answer budget(gpu::Budget* budget) override {
    size_t free = 0;
    size_t total = 0;
    const Answer answer = ATLAS_CUDA_CALL(cuMemGetInfo, &free, &total);
    *budget = {total, free};
    if (!facts_.unified) return answer;
    // Where memory is shared, the driver counts the page cache as taken, which the system gives
    // back.
    const gpu::MachineMemory machine = gpu::machine_memory();
    if (machine.total_bytes != 0) {
      *budget = {std::min<uint64_t>(total, machine.total_bytes), machine.available_bytes};
    }
    return answer;
  }

  Answer alloc_device(uint64_t bytes, uint64_t* address) override {
    CuDevicePtr pointer = 0;
    const Answer answer = ATLAS_CUDA_CALL(cuMemAlloc, &pointer, bytes);
    *address = pointer;
    return answer;
  }
  Answer free_device(uint64_t address) override { return ATLAS_CUDA_CALL(cuMemFree, address); }

  Answer alloc_pinned(uint64_t bytes, void** host, uint64_t* device) override {
    const Answer answer = ATLAS_CUDA_CALL(cuMemHostAlloc, host, bytes,
                                          kCuMemHostAllocPortable | kCuMemHostAllocDeviceMap);
    if (answer.result != kCuSuccess) return answer;
    CuDevicePtr pointer = 0;
    const Answer mapped = ATLAS_CUDA_CALL(cuMemHostGetDevicePointer, &pointer, *host, 0);
    *device = pointer;
    if (mapped.result != kCuSuccess) (void)api_.cuMemFreeHost(*host);
    return mapped;
  }
  Answer free_pinned(void* host) override { return ATLAS_CUDA_CALL(cuMemFreeHost, host); }

  Answer stream_create(void** stream) override {
    // Not ordered with the default stream, which libraries may use.
    return ATLAS_CUDA_CALL(cuStreamCreate, reinterpret_cast<CuStream*>(stream),
                           kCuStreamNonBlocking);
  }
  Answer stream_destroy(void* stream) override {
    return ATLAS_CUDA_CALL(cuStreamDestroy, stream_of(stream));
  }
  Answer stream_query(void* stream) override {
    return ATLAS_CUDA_CALL(cuStreamQuery, stream_of(stream));
  }
  Answer event_create(void** event) override {
    return ATLAS_CUDA_CALL(cuEventCreate, reinterpret_cast<CuEvent*>(event), kCuEventDisableTiming);
  }
  Answer event_destroy(void* event) override {
    return ATLAS_CUDA_CALL(cuEventDestroy, event_of(event));
  }
  Answer event_record(void* event, void* stream) override {
    return ATLAS_CUDA_CALL(cuEventRecord, event_of(event), stream_of(stream));
  }
  Answer event_query(void* event) override {
    return ATLAS_CUDA_CALL(cuEventQuery, event_of(event));
  }

  Answer copy_to_device(uint64_t to, const void* from, uint64_t bytes, void* stream) override {
    return ATLAS_CUDA_CALL(cuMemcpyHtoDAsync, to, from, bytes, stream_of(stream));
  }
  Answer copy_to_host(void* to, uint64_t from, uint64_t bytes, void* stream) override {
    return ATLAS_CUDA_CALL(cuMemcpyDtoHAsync, to, from, bytes, stream_of(stream));
  }
  Answer fill(uint64_t to, uint8_t value, uint64_t bytes, void* stream) override {
    return ATLAS_CUDA_CALL(cuMemsetD8Async, to, value, bytes, stream_of(stream));
  }

  Answer module_load(const void* image, void** module) override {
    return ATLAS_CUDA_CALL(cuModuleLoadData, reinterpret_cast<CuModule*>(module), image);
  }
  Answer module_unload(void* module) override {
    return ATLAS_CUDA_CALL(cuModuleUnload, static_cast<CuModule>(module));
  }
  Answer module_kernel(void* module, const char* symbol, gpu::Kernel* kernel) override;
  Answer allow_shared(void* kernel, uint32_t bytes) override {
    return ATLAS_CUDA_CALL(cuFuncSetAttribute, function_of(kernel),
                           kCuFuncMaxDynamicSharedSizeBytes, static_cast<int>(bytes));
  }

  Answer launch(const gpu::Shape& shape, void* stream) override {
    void* params[] = {const_cast<void*>(shape.params)};
    return ATLAS_CUDA_CALL(cuLaunchKernel, function_of(shape.kernel), shape.grid[0], shape.grid[1],
                           shape.grid[2], shape.block[0], shape.block[1], shape.block[2],
                           shape.shared_bytes, stream_of(stream), params, nullptr);
  }

  Answer graph_create(void** graph) override {
    return ATLAS_CUDA_CALL(cuGraphCreate, reinterpret_cast<CuGraph*>(graph), 0);
  }
  Answer graph_destroy(void* graph) override {
    return ATLAS_CUDA_CALL(cuGraphDestroy, graph_of(graph));
  }
  Answer graph_add(void* graph, std::span<const gpu::Edge> after, const gpu::Shape& shape,
                   void** node) override;
  Answer graph_instantiate(void* graph, void** executable) override {
    return ATLAS_CUDA_CALL(cuGraphInstantiateWithFlags, reinterpret_cast<CuGraphExec*>(executable),
                           graph_of(graph), 0);
  }
  Answer graph_upload(void* executable, void* stream) override {
    return ATLAS_CUDA_CALL(cuGraphUpload, executable_of(executable), stream_of(stream));
  }
  Answer graph_launch(void* executable, void* stream) override {
    return ATLAS_CUDA_CALL(cuGraphLaunch, executable_of(executable), stream_of(stream));
  }
  Answer graph_release(void* executable) override {
    return ATLAS_CUDA_CALL(cuGraphExecDestroy, executable_of(executable));
  }

 private:
  DriverApi api_;
  CuDevice device_;
  gpu::Facts facts_;
  CuContext context_;
};

Answer CudaRuntime::module_kernel(void* module, const char* symbol, gpu::Kernel* kernel) {
  CuFunction function = nullptr;
  const Answer found =
      ATLAS_CUDA_CALL(cuModuleGetFunction, &function, static_cast<CuModule>(module), symbol);
  if (found.result != kCuSuccess) return found;
  kernel->handle = function;
  // Drivers load code at its first use, which must not be a step.
  if (api_.cuFuncLoad != nullptr) {
    const Answer loaded = ATLAS_CUDA_CALL(cuFuncLoad, function);
    if (loaded.result != kCuSuccess) return loaded;
  }
  int threads = 0;
  const Answer limit =
      ATLAS_CUDA_CALL(cuFuncGetAttribute, &threads, kCuFuncMaxThreadsPerBlock, function);
  if (limit.result != kCuSuccess) return limit;
  kernel->max_block_threads = static_cast<uint32_t>(std::max(threads, 0));
  int shared = 0;
  const Answer size =
      ATLAS_CUDA_CALL(cuFuncGetAttribute, &shared, kCuFuncSharedSizeBytes, function);
  if (size.result != kCuSuccess) return size;
  kernel->static_shared_bytes = static_cast<uint32_t>(std::max(shared, 0));
  // A multiprocessor divides its memory between cache and shared memory anew only when it is empty:
  // with one division for all kernels of a step they can overlap. A hint, which may be refused.
  constexpr int kAllShared = 100;  // percent
  (void)api_.cuFuncSetAttribute(function, kCuFuncPreferredSharedCarveout, kAllShared);
  size_t offset = 0;
  size_t bytes = 0;
  const bool told = api_.cuFuncGetParamInfo != nullptr &&
                    api_.cuFuncGetParamInfo(function, 0, &offset, &bytes) == kCuSuccess;
  kernel->params_bytes = told ? static_cast<uint32_t>(bytes) : 0;
  // Kernels of other makers may lack the symbol: they start once the one before them has ended.
  constexpr std::string_view kKernelPrefix = "atlas_kernel_";
  if (const std::string_view name(symbol); name.starts_with(kKernelPrefix)) {
    const std::string mark = "atlas_waits_" + std::string(name.substr(kKernelPrefix.size()));
    CuDevicePtr place = 0;
    size_t mark_bytes = 0;
    kernel->waits = api_.cuModuleGetGlobal(&place, &mark_bytes, static_cast<CuModule>(module),
                                           mark.c_str()) == kCuSuccess;
  }
  return size;
}

Answer CudaRuntime::graph_add(void* graph, std::span<const gpu::Edge> after,
                              const gpu::Shape& shape, void** node) {
  void* params[] = {const_cast<void*>(shape.params)};
  CuKernelNodeParams launch{};
  launch.func = function_of(shape.kernel);
  launch.grid_x = shape.grid[0];
  launch.grid_y = shape.grid[1];
  launch.grid_z = shape.grid[2];
  launch.block_x = shape.block[0];
  launch.block_y = shape.block[1];
  launch.block_z = shape.block[2];
  launch.shared_bytes = shape.shared_bytes;
  launch.kernel_params = params;  // the driver copies what it points to
  std::vector<CuGraphNode> ended, early;
  for (const gpu::Edge& edge : after) {
    const bool overlaps = edge.early && api_.cuGraphAddDependencies != nullptr;
    (overlaps ? early : ended).push_back(static_cast<CuGraphNode>(edge.node));
  }
  auto* added = reinterpret_cast<CuGraphNode*>(node);
  Answer answer = ATLAS_CUDA_CALL(cuGraphAddKernelNode, added, graph_of(graph), ended.data(),
                                  ended.size(), &launch);
  const CuGraphEdgeData edge{kCuPortProgrammatic, 0, kCuDependencyProgrammatic, {}};
  for (const CuGraphNode before : early) {
    if (answer.result != kCuSuccess) break;
    answer =
        ATLAS_CUDA_CALL(cuGraphAddDependencies, graph_of(graph), &before, added, &edge, size_t{1});
  }
  return answer;
}

#undef ATLAS_CUDA_CALL

// ---- Opening
// --------------------------------------------------------------------------------------

struct Found {
  CuDevice device;
  int ordinal;
  std::string name;
  int major, minor;

  std::string text() const {
    return "device " + std::to_string(ordinal) + " is " + name + ", compute capability " +
           capability(major, minor);
  }
};

class Opening {
 public:
  explicit Opening(const DriverApi& api) : api_(api) {}

  std::vector<Found> devices() {
    int count = 0;
    check("cuDeviceGetCount", api_.cuDeviceGetCount(&count));
    std::vector<Found> found;
    for (int i = 0; i < count; ++i) {
      CuDevice device = 0;
      check("cuDeviceGet", api_.cuDeviceGet(&device, i));
      char name[256] = "";
      check("cuDeviceGetName", api_.cuDeviceGetName(name, sizeof(name), device));
      name[sizeof(name) - 1] = '\0';
      found.push_back({device, i, name, attribute(device, kCuComputeCapabilityMajor),
                       attribute(device, kCuComputeCapabilityMinor)});
    }
    return found;
  }

  gpu::Facts facts(const Found& found) {
    gpu::Facts facts;
    int version = 0;
    check("cuDriverGetVersion", api_.cuDriverGetVersion(&version));
    facts.name = found.name;
    facts.architecture = "sm_" + std::to_string(found.major) + std::to_string(found.minor);
    facts.runtime = "CUDA " + version_text(version);
    facts.unified = attribute(found.device, kCuIntegrated) != 0;
    const auto number = [&](int which) {
      return static_cast<uint32_t>(std::max(attribute(found.device, which), 0));
    };
    facts.compute_units = number(kCuMultiprocessorCount);
    facts.max_block_threads = number(kCuMaxThreadsPerBlock);
    facts.shared_bytes = number(kCuMaxSharedMemoryPerBlock);
    facts.most_shared_bytes = number(kCuMaxSharedMemoryPerBlockOptin);
    for (int side = 0; side < 3; ++side) {
      facts.max_block[side] = number(kCuMaxBlockDimX + side);
      facts.max_grid[side] = number(kCuMaxGridDimX + side);
    }
    return facts;
  }

  void check(const char* call, int result) {
    if (result == kCuSuccess) return;
    throw Failure(ATLAS_FAILED_PRECONDITION,
                  std::string(call) + " answered " + describe(api_, result) + "; " + kDriverAdvice);
  }

 private:
  int attribute(CuDevice device, int which) {
    int value = 0;
    check("cuDeviceGetAttribute", api_.cuDeviceGetAttribute(&value, which, device));
    return value;
  }

  const DriverApi& api_;
};

std::string list(const std::vector<Found>& devices) {
  std::string text;
  for (const Found& device : devices) text += (text.empty() ? "" : "; ") + device.text();
  return text.empty() ? "there is none" : text;
}

Found choose(const std::vector<Found>& devices, const gpu::Options& options) {
  const auto target = std::find_if(kTargets.begin(), kTargets.end(), [&](const Target& candidate) {
    return candidate.platform == options.platform;
  });
  if (target == kTargets.end()) {
    throw Failure(ATLAS_INVALID_ARGUMENT,
                  "platform '" + options.platform + "' is not one of this plugin's: h200, gb10");
  }
  const std::string wanted = "compute capability " + capability(target->major, target->minor) +
                             ", which platform '" + options.platform + "' is built for";
  for (const Found& device : devices) {
    const bool fits = device.major == target->major && device.minor == target->minor;
    if (!options.device) {
      if (fits) return device;
      continue;
    }
    if (device.ordinal != static_cast<int>(*options.device)) continue;
    if (fits) return device;
    throw Failure(ATLAS_NOT_FOUND, "platform option 'device' is " +
                                       std::to_string(*options.device) + ", and " + device.text() +
                                       " instead of " + wanted);
  }
  const std::string which =
      options.device ? "device " + std::to_string(*options.device) : "device of " + wanted;
  throw Failure(ATLAS_NOT_FOUND, "CUDA has no " + which + ": " + list(devices));
}

}  // namespace

std::unique_ptr<gpu::Runtime> open_cuda(const gpu::Options& options) {
  const DriverApi api = open_driver();
  Opening opening(api);
  const int started = api.cuInit(0);
  // Without any device this is how the driver says so.
  if (started != kCuNoDevice) opening.check("cuInit", started);
  const Found found =
      choose(started == kCuNoDevice ? std::vector<Found>() : opening.devices(), options);
  gpu::Facts facts = opening.facts(found);
  CuContext context = nullptr;
  opening.check("cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain(&context, found.device));
  return std::make_unique<CudaRuntime>(api, found.device, std::move(facts), context);
}

}  // namespace atlas::platform_cuda
