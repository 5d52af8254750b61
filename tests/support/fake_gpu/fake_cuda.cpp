// A libcuda.so.1 for tests: CUDA's driver API, as far as the platform uses it, over the fake GPU.
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "plugins/platform_cuda/driver_api.h"
#include "tests/support/fake_gpu/machine.h"

namespace atlas::fake_gpu {
namespace {

using namespace platform_cuda;

// The one context; its address is what counts.
int context_tag = 0;
thread_local const void* bound = nullptr;

CuContext the_context() { return reinterpret_cast<CuContext>(&context_tag); }

// Counts the call; what it answers before it does anything.
int begin(const char* name, bool needs_context = true) {
  if (const int result = machine().begin_call(name)) return result;
  return needs_context && bound != &context_tag ? int{kCuInvalidContext} : int{kCuSuccess};
}
#define ATLAS_FAKE_BEGIN(...) \
  if (const int result = begin(__func__ __VA_OPT__(, ) __VA_ARGS__)) return result

Stream* stream_of(CuStream stream) { return reinterpret_cast<Stream*>(stream); }
Event* event_of(CuEvent event) { return reinterpret_cast<Event*>(event); }
Kernel* kernel_of(CuFunction function) { return reinterpret_cast<Kernel*>(function); }
Graph* graph_of(CuGraph graph) { return reinterpret_cast<Graph*>(graph); }
Executable* executable_of(CuGraphExec exec) { return reinterpret_cast<Executable*>(exec); }

CuResult cuInit(unsigned int) {
  ATLAS_FAKE_BEGIN(false);
  return machine().script().device_count == 0 ? kCuNoDevice : kCuSuccess;
}
CuResult cuDriverGetVersion(int* version) {
  ATLAS_FAKE_BEGIN(false);
  *version = machine().script().version;
  return kCuSuccess;
}

struct NamedResult {
  int result;
  const char* name;
  const char* text;
};
constexpr NamedResult kResults[] = {
    {kCuInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kCuOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kCuInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {kCuInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kCuNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"},
    {kCuEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {kCuNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kCuIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kCuLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kCuNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

CuResult cuGetErrorName(CuResult result, const char** name) {
  for (const NamedResult& known : kResults) {
    if (known.result != result) continue;
    *name = known.name;
    return kCuSuccess;
  }
  return kCuInvalidValue;
}
CuResult cuGetErrorString(CuResult result, const char** text) {
  for (const NamedResult& known : kResults) {
    if (known.result != result) continue;
    *text = known.text;
    return kCuSuccess;
  }
  return kCuInvalidValue;
}

CuResult cuDeviceGetCount(int* count) {
  ATLAS_FAKE_BEGIN(false);
  *count = static_cast<int>(machine().script().device_count);
  return kCuSuccess;
}
CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  ATLAS_FAKE_BEGIN(false);
  if (ordinal < 0 || ordinal >= static_cast<int>(machine().script().device_count)) {
    return kCuInvalidDevice;
  }
  *device = ordinal;
  return kCuSuccess;
}
CuResult cuDeviceGetName(char* name, int size, CuDevice device) {
  ATLAS_FAKE_BEGIN(false);
  std::snprintf(name, static_cast<size_t>(size), "%s", machine().script().devices[device].name);
  return kCuSuccess;
}
CuResult cuDeviceGetAttribute(int* value, int attribute, CuDevice device) {
  ATLAS_FAKE_BEGIN(false);
  const FakeDevice& fake = machine().script().devices[device];
  const int sm = std::atoi(fake.architecture + 3);
  const std::map<int, int> values = {
      {kCuMaxThreadsPerBlock, kMostThreads},
      {kCuMaxBlockDimX, 1024},
      {kCuMaxBlockDimY, 1024},
      {kCuMaxBlockDimZ, 64},
      {kCuMaxGridDimX, kMostGrid[0]},
      {kCuMaxGridDimY, kMostGrid[1]},
      {kCuMaxGridDimZ, kMostGrid[2]},
      {kCuMaxSharedMemoryPerBlock, kSharedBytes},
      {kCuMultiprocessorCount, 132},
      {kCuIntegrated, static_cast<int>(fake.integrated)},
      {kCuComputeCapabilityMajor, sm / 10},
      {kCuComputeCapabilityMinor, sm % 10},
      {kCuMaxSharedMemoryPerBlockOptin, kMostSharedBytes},
  };
  const auto found = values.find(attribute);
  if (found == values.end()) return kCuInvalidValue;
  *value = found->second;
  return kCuSuccess;
}
CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice) {
  ATLAS_FAKE_BEGIN(false);
  *context = the_context();
  return kCuSuccess;
}
CuResult cuDevicePrimaryCtxRelease(CuDevice) {
  ATLAS_FAKE_BEGIN(false);
  return kCuSuccess;
}
CuResult cuCtxSetCurrent(CuContext context) {
  ATLAS_FAKE_BEGIN(false);
  bound = context;
  return kCuSuccess;
}

CuResult cuMemGetInfo(size_t* free, size_t* total) {
  ATLAS_FAKE_BEGIN();
  *free = machine().free_bytes();
  *total = machine().script().devices[0].memory_bytes;
  return kCuSuccess;
}
CuResult cuMemAlloc(CuDevicePtr* address, size_t bytes) {
  ATLAS_FAKE_BEGIN();
  uint64_t at = 0;
  if (!machine().alloc_device(bytes, &at)) return kCuOutOfMemory;
  *address = at;
  return kCuSuccess;
}
CuResult cuMemFree(CuDevicePtr address) {
  ATLAS_FAKE_BEGIN();
  return machine().free_device(address) ? kCuSuccess : kCuInvalidValue;
}
CuResult cuMemHostAlloc(void** host, size_t bytes, unsigned int flags) {
  ATLAS_FAKE_BEGIN();
  if ((flags & kCuMemHostAllocDeviceMap) == 0) return kCuInvalidValue;
  return machine().alloc_pinned(bytes, host) ? kCuSuccess : kCuOutOfMemory;
}
CuResult cuMemFreeHost(void* host) {
  ATLAS_FAKE_BEGIN();
  return machine().free_pinned(host) ? kCuSuccess : kCuInvalidValue;
}
CuResult cuMemHostGetDevicePointer(CuDevicePtr* address, void* host, unsigned int) {
  ATLAS_FAKE_BEGIN();
  if (!machine().is_pinned(host, 1)) return kCuInvalidValue;
  *address = reinterpret_cast<CuDevicePtr>(host) +
             (machine().script().other_pinned_address != 0 ? 4096 : 0);
  return kCuSuccess;
}

CuResult cuMemcpyHtoDAsync(CuDevicePtr to, const void* from, size_t bytes, CuStream stream) {
  ATLAS_FAKE_BEGIN();
  Machine& fake = machine();
  if (!fake.has_stream(stream_of(stream))) return kCuInvalidValue;
  if (!fake.is_device(to, bytes) && !fake.is_pinned(reinterpret_cast<void*>(to), bytes)) {
    return kCuInvalidValue;
  }
  if (!fake.is_pinned(from, bytes)) return kCuInvalidValue;
  void* target = fake.is_device(to, bytes) ? fake.memory(to) : reinterpret_cast<void*>(to);
  stream_of(stream)->submit([=, &fake] {
    std::memcpy(target, from, bytes);
    if (fake.is_device(to, bytes)) fake.wrote(to, bytes);
  });
  return kCuSuccess;
}
CuResult cuMemcpyDtoHAsync(void* to, CuDevicePtr from, size_t bytes, CuStream stream) {
  ATLAS_FAKE_BEGIN();
  Machine& fake = machine();
  if (!fake.has_stream(stream_of(stream)) || !fake.is_pinned(to, bytes)) return kCuInvalidValue;
  if (!fake.is_device(from, bytes) && !fake.is_pinned(reinterpret_cast<void*>(from), bytes)) {
    return kCuInvalidValue;
  }
  const void* source =
      fake.is_device(from, bytes) ? fake.memory(from) : reinterpret_cast<void*>(from);
  stream_of(stream)->submit([=] { std::memcpy(to, source, bytes); });
  return kCuSuccess;
}
CuResult cuMemsetD8Async(CuDevicePtr to, unsigned char value, size_t bytes, CuStream stream) {
  ATLAS_FAKE_BEGIN();
  Machine& fake = machine();
  if (!fake.has_stream(stream_of(stream))) return kCuInvalidValue;
  const bool device = fake.is_device(to, bytes);
  if (!device && !fake.is_pinned(reinterpret_cast<void*>(to), bytes)) return kCuInvalidValue;
  void* target = device ? fake.memory(to) : reinterpret_cast<void*>(to);
  stream_of(stream)->submit([=, &fake] {
    std::memset(target, value, bytes);
    if (device) fake.wrote(to, bytes);
  });
  return kCuSuccess;
}

CuResult cuStreamCreate(CuStream* stream, unsigned int) {
  ATLAS_FAKE_BEGIN();
  *stream = reinterpret_cast<CuStream>(machine().open_stream());
  return kCuSuccess;
}
CuResult cuStreamDestroy(CuStream stream) {
  ATLAS_FAKE_BEGIN();
  return machine().close_stream(stream_of(stream)) ? kCuSuccess : kCuInvalidValue;
}
CuResult cuStreamQuery(CuStream stream) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_stream(stream_of(stream))) return kCuInvalidValue;
  if (!stream_of(stream)->idle()) return kCuNotReady;
  return machine().fault();
}
CuResult cuEventCreate(CuEvent* event, unsigned int) {
  ATLAS_FAKE_BEGIN();
  *event = reinterpret_cast<CuEvent>(machine().open_event());
  return kCuSuccess;
}
CuResult cuEventDestroy(CuEvent event) {
  ATLAS_FAKE_BEGIN();
  return machine().close_event(event_of(event)) ? kCuSuccess : kCuInvalidValue;
}
CuResult cuEventRecord(CuEvent event, CuStream stream) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_stream(stream_of(stream))) return kCuInvalidValue;
  machine().record(event_of(event), stream_of(stream));
  return kCuSuccess;
}
CuResult cuEventQuery(CuEvent event) {
  ATLAS_FAKE_BEGIN();
  const Event* fake = event_of(event);
  if (fake->done.load() < fake->recorded.load()) return kCuNotReady;
  return machine().fault();
}

CuResult cuModuleLoadData(CuModule* module, const void* image) {
  ATLAS_FAKE_BEGIN();
  Module* loaded = nullptr;
  switch (machine().load(image, &loaded)) {
    case Load::kInvalid:
      return kCuInvalidImage;
    case Load::kOtherArchitecture:
      return kCuNoBinaryForGpu;
    case Load::kOk:
      break;
  }
  *module = reinterpret_cast<CuModule>(loaded);
  return kCuSuccess;
}
CuResult cuModuleUnload(CuModule module) {
  ATLAS_FAKE_BEGIN();
  machine().unload(reinterpret_cast<Module*>(module));
  return kCuSuccess;
}
CuResult cuModuleGetFunction(CuFunction* function, CuModule module, const char* name) {
  ATLAS_FAKE_BEGIN();
  Kernel* kernel = machine().kernel(reinterpret_cast<Module*>(module), name);
  if (kernel == nullptr) return kCuNotFound;
  *function = reinterpret_cast<CuFunction>(kernel);
  return kCuSuccess;
}
CuResult cuModuleGetGlobal(CuDevicePtr* address, size_t* bytes, CuModule module, const char* name) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_symbol(reinterpret_cast<Module*>(module), name)) return kCuNotFound;
  *address = 0;
  *bytes = sizeof(uint32_t);
  return kCuSuccess;
}
CuResult cuFuncGetAttribute(int* value, int attribute, CuFunction) {
  ATLAS_FAKE_BEGIN();
  if (attribute != kCuFuncMaxThreadsPerBlock && attribute != kCuFuncSharedSizeBytes) {
    return kCuInvalidValue;
  }
  *value = attribute == kCuFuncMaxThreadsPerBlock ? kMostThreads : 0;
  return kCuSuccess;
}
CuResult cuFuncSetAttribute(CuFunction function, int attribute, int value) {
  ATLAS_FAKE_BEGIN();
  if (attribute == kCuFuncPreferredSharedCarveout) {
    return value >= 0 && value <= 100 ? kCuSuccess : kCuInvalidValue;
  }
  if (attribute != kCuFuncMaxDynamicSharedSizeBytes || value < 0 ||
      static_cast<uint32_t>(value) > kMostSharedBytes) {
    return kCuInvalidValue;
  }
  kernel_of(function)->allowed_shared = static_cast<uint32_t>(value);
  return kCuSuccess;
}
CuResult cuFuncLoad(CuFunction) {
  ATLAS_FAKE_BEGIN();
  return kCuSuccess;
}
CuResult cuFuncGetParamInfo(CuFunction function, size_t index, size_t* offset, size_t* bytes) {
  ATLAS_FAKE_BEGIN();
  if (index != 0) return kCuInvalidValue;
  *offset = 0;
  *bytes = kernel_of(function)->params_bytes;
  return kCuSuccess;
}
CuResult cuLaunchKernel(CuFunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CuStream stream,
                        void** params, void** extra) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_stream(stream_of(stream)) || extra != nullptr) return kCuInvalidValue;
  Launch launch;
  if (!machine().prepare(kernel_of(function), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                         shared_bytes, params[0], &launch)) {
    return kCuInvalidValue;
  }
  machine().submit(stream_of(stream), {launch});
  return kCuSuccess;
}

CuResult cuGraphCreate(CuGraph* graph, unsigned int) {
  ATLAS_FAKE_BEGIN();
  *graph = reinterpret_cast<CuGraph>(machine().open_graph());
  return kCuSuccess;
}
CuResult cuGraphDestroy(CuGraph graph) {
  ATLAS_FAKE_BEGIN();
  machine().close_graph(graph_of(graph));
  return kCuSuccess;
}
CuResult cuGraphAddKernelNode(CuGraphNode* node, CuGraph graph, const CuGraphNode* after,
                              size_t after_count, const CuKernelNodeParams* params) {
  ATLAS_FAKE_BEGIN();
  Node added;
  if (!machine().prepare(kernel_of(params->func), {params->grid_x, params->grid_y, params->grid_z},
                         {params->block_x, params->block_y, params->block_z}, params->shared_bytes,
                         params->kernel_params[0], &added.launch)) {
    return kCuInvalidValue;
  }
  for (size_t i = 0; i < after_count; ++i) added.after.push_back(reinterpret_cast<Node*>(after[i]));
  graph_of(graph)->nodes.push_back(std::move(added));
  *node = reinterpret_cast<CuGraphNode>(&graph_of(graph)->nodes.back());
  return kCuSuccess;
}
CuResult cuGraphAddDependencies(CuGraph, const CuGraphNode* from, const CuGraphNode* to,
                                const CuGraphEdgeData* edges, size_t count) {
  ATLAS_FAKE_BEGIN();
  for (size_t i = 0; i < count; ++i) {
    const bool programmatic = edges[i].from_port == kCuPortProgrammatic &&
                              edges[i].type == kCuDependencyProgrammatic && edges[i].to_port == 0;
    if (from[i] == nullptr || to[i] == nullptr || !programmatic) return kCuInvalidValue;
    reinterpret_cast<Node*>(to[i])->after.push_back(reinterpret_cast<Node*>(from[i]));
  }
  return kCuSuccess;
}
CuResult cuGraphInstantiateWithFlags(CuGraphExec* executable, CuGraph graph, unsigned long long) {
  ATLAS_FAKE_BEGIN();
  Executable* made = machine().instantiate(*graph_of(graph));
  if (made == nullptr) return kCuInvalidValue;
  *executable = reinterpret_cast<CuGraphExec>(made);
  return kCuSuccess;
}
CuResult cuGraphUpload(CuGraphExec, CuStream stream) {
  ATLAS_FAKE_BEGIN();
  return machine().has_stream(stream_of(stream)) ? kCuSuccess : kCuInvalidValue;
}
CuResult cuGraphLaunch(CuGraphExec executable, CuStream stream) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_stream(stream_of(stream))) return kCuInvalidValue;
  machine().submit(stream_of(stream), executable_of(executable)->launches);
  return kCuSuccess;
}
CuResult cuGraphExecDestroy(CuGraphExec executable) {
  ATLAS_FAKE_BEGIN();
  machine().close_executable(executable_of(executable));
  return kCuSuccess;
}

// A driver knows the entry points of its own version and earlier ones.
struct EntryPoint {
  const char* name;
  int version;
  void* function;
};
const EntryPoint kEntryPoints[] = {
#define ATLAS_FAKE_ENTRY(name, version, arguments) \
  {#name, version, reinterpret_cast<void*>(static_cast<CuResult(*) arguments>(name))},
    ATLAS_CUDA_ENTRY_POINTS(ATLAS_FAKE_ENTRY) ATLAS_CUDA_OPTIONAL_ENTRY_POINTS(ATLAS_FAKE_ENTRY)
#undef ATLAS_FAKE_ENTRY
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol,
                                                                          void** function,
                                                                          int version, uint64_t,
                                                                          int*) {
  const Script& script = machine().script();
  for (const EntryPoint& entry : kEntryPoints) {
    if (std::strcmp(entry.name, symbol) != 0 || version < entry.version) continue;
    if (entry.version > script.version || std::strcmp(script.missing, symbol) == 0) break;
    *function = entry.function;
    return kCuSuccess;
  }
  *function = nullptr;
  return kCuNotFound;
}

}  // namespace atlas::fake_gpu
