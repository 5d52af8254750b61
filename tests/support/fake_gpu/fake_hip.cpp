// A libamdhip64.so.7 for tests: HIP's runtime API, as far as the platform uses it, over the fake
// GPU.
#include <cstdio>
#include <cstring>

#include "plugins/platform_hip/runtime_api.h"
#include "tests/support/fake_gpu/machine.h"

#define ATLAS_HIP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace atlas::fake_gpu;
using namespace atlas::platform_hip;

thread_local int bound = -1;

// Counts the call; what it answers before it does anything.
int begin(const char* name, bool needs_device = true) {
  if (const int result = machine().begin_call(name)) return result;
  return needs_device && bound < 0 ? int{kHipInvalidContext} : int{kHipSuccess};
}
#define ATLAS_FAKE_BEGIN(...) \
  if (const int result = begin(__func__ __VA_OPT__(, ) __VA_ARGS__)) return result

Stream* stream_of(HipStream stream) { return reinterpret_cast<Stream*>(stream); }
Event* event_of(HipEvent event) { return reinterpret_cast<Event*>(event); }
Kernel* kernel_of(void* function) { return static_cast<Kernel*>(function); }
Graph* graph_of(HipGraph graph) { return reinterpret_cast<Graph*>(graph); }
Executable* executable_of(HipGraphExec exec) { return reinterpret_cast<Executable*>(exec); }

}  // namespace

ATLAS_HIP_EXPORT HipResult hipInit(unsigned int) {
  ATLAS_FAKE_BEGIN(false);
  return machine().script().device_count == 0 ? kHipNoDevice : kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipRuntimeGetVersion(int* version) {
  ATLAS_FAKE_BEGIN(false);
  *version = machine().script().version;
  return kHipSuccess;
}
ATLAS_HIP_EXPORT const char* hipGetErrorName(HipResult result) {
  switch (result) {
    case kHipOutOfMemory:
      return "hipErrorOutOfMemory";
    case kHipNoBinaryForGpu:
      return "hipErrorNoBinaryForGpu";
    case kHipIllegalAddress:
      return "hipErrorIllegalAddress";
    case kHipLaunchFailure:
      return "hipErrorLaunchFailure";
    case kHipNotSupported:
      return "hipErrorNotSupported";
    default:
      return "hipErrorUnknown";
  }
}
ATLAS_HIP_EXPORT const char* hipGetErrorString(HipResult) { return "of the fake"; }

ATLAS_HIP_EXPORT HipResult hipGetDeviceCount(int* count) {
  ATLAS_FAKE_BEGIN(false);
  *count = static_cast<int>(machine().script().device_count);
  return *count == 0 ? kHipNoDevice : kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipGetDevicePropertiesR0600(HipDeviceProperties* properties,
                                                       int device) {
  ATLAS_FAKE_BEGIN(false);
  if (device < 0 || device >= static_cast<int>(machine().script().device_count)) {
    return kHipInvalidDevice;
  }
  const FakeDevice& fake = machine().script().devices[device];
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "%s", fake.name);
  std::snprintf(properties->architecture, sizeof(properties->architecture), "%s",
                fake.architecture);
  properties->total_memory = fake.memory_bytes;
  properties->shared_bytes_per_block = 64 * 1024;
  properties->max_threads_per_block = kMostThreads;
  properties->multiprocessors = 20;
  properties->integrated = static_cast<int>(fake.integrated);
  for (int side = 0; side < 3; ++side) {
    properties->max_block[side] = 1024;
    properties->max_grid[side] = static_cast<int>(kMostGrid[side]);
  }
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipSetDevice(int device) {
  ATLAS_FAKE_BEGIN(false);
  bound = device;
  return kHipSuccess;
}

ATLAS_HIP_EXPORT HipResult hipMemGetInfo(size_t* free, size_t* total) {
  ATLAS_FAKE_BEGIN();
  *free = machine().free_bytes();
  *total = machine().script().devices[0].memory_bytes;
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipMalloc(void** address, size_t bytes) {
  ATLAS_FAKE_BEGIN();
  uint64_t at = 0;
  if (!machine().alloc_device(bytes, &at)) return kHipOutOfMemory;
  *address = reinterpret_cast<void*>(at);
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipFree(void* address) {
  ATLAS_FAKE_BEGIN();
  return machine().free_device(reinterpret_cast<uint64_t>(address)) ? kHipSuccess
                                                                    : kHipInvalidValue;
}
ATLAS_HIP_EXPORT HipResult hipHostMalloc(void** host, size_t bytes, unsigned int flags) {
  ATLAS_FAKE_BEGIN();
  const unsigned int wanted = kHipHostMallocMapped | kHipHostMallocCoherent;
  if ((flags & wanted) != wanted) return kHipInvalidValue;
  return machine().alloc_pinned(bytes, host) ? kHipSuccess : kHipOutOfMemory;
}
ATLAS_HIP_EXPORT HipResult hipHostFree(void* host) {
  ATLAS_FAKE_BEGIN();
  return machine().free_pinned(host) ? kHipSuccess : kHipInvalidValue;
}
ATLAS_HIP_EXPORT HipResult hipHostGetDevicePointer(void** device, void* host, unsigned int) {
  ATLAS_FAKE_BEGIN();
  if (!machine().is_pinned(host, 1)) return kHipInvalidValue;
  *device = static_cast<char*>(host) + (machine().script().other_pinned_address != 0 ? 4096 : 0);
  return kHipSuccess;
}

ATLAS_HIP_EXPORT HipResult hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind,
                                          HipStream stream) {
  ATLAS_FAKE_BEGIN();
  Machine& fake = machine();
  const bool up = kind == kHipHostToDevice;
  const auto device = reinterpret_cast<uint64_t>(up ? to : from);
  const void* host = up ? from : to;
  if (!fake.has_stream(stream_of(stream)) || (!up && kind != kHipDeviceToHost) ||
      !fake.is_pinned(host, bytes)) {
    return kHipInvalidValue;
  }
  const bool known = fake.is_device(device, bytes);
  if (!known && !fake.is_pinned(reinterpret_cast<void*>(device), bytes)) return kHipInvalidValue;
  void* place = known ? fake.memory(device) : reinterpret_cast<void*>(device);
  void* target = up ? place : to;
  const void* source = up ? from : place;
  stream_of(stream)->submit([=] { std::memcpy(target, source, bytes); });
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipMemsetAsync(void* to, int value, size_t bytes, HipStream stream) {
  ATLAS_FAKE_BEGIN();
  Machine& fake = machine();
  const auto address = reinterpret_cast<uint64_t>(to);
  if (!fake.has_stream(stream_of(stream))) return kHipInvalidValue;
  const bool device = fake.is_device(address, bytes);
  if (!device && !fake.is_pinned(to, bytes)) return kHipInvalidValue;
  void* target = device ? fake.memory(address) : to;
  stream_of(stream)->submit([=] { std::memset(target, value, bytes); });
  return kHipSuccess;
}

ATLAS_HIP_EXPORT HipResult hipStreamCreateWithFlags(HipStream* stream, unsigned int) {
  ATLAS_FAKE_BEGIN();
  *stream = reinterpret_cast<HipStream>(machine().open_stream());
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipStreamDestroy(HipStream stream) {
  ATLAS_FAKE_BEGIN();
  return machine().close_stream(stream_of(stream)) ? kHipSuccess : kHipInvalidValue;
}
ATLAS_HIP_EXPORT HipResult hipStreamQuery(HipStream stream) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_stream(stream_of(stream))) return kHipInvalidValue;
  if (!stream_of(stream)->idle()) return kHipNotReady;
  return machine().fault();
}
ATLAS_HIP_EXPORT HipResult hipEventCreateWithFlags(HipEvent* event, unsigned int) {
  ATLAS_FAKE_BEGIN();
  *event = reinterpret_cast<HipEvent>(machine().open_event());
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipEventDestroy(HipEvent event) {
  ATLAS_FAKE_BEGIN();
  return machine().close_event(event_of(event)) ? kHipSuccess : kHipInvalidValue;
}
ATLAS_HIP_EXPORT HipResult hipEventRecord(HipEvent event, HipStream stream) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_stream(stream_of(stream))) return kHipInvalidValue;
  machine().record(event_of(event), stream_of(stream));
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipEventQuery(HipEvent event) {
  ATLAS_FAKE_BEGIN();
  const Event* fake = event_of(event);
  if (fake->done.load() < fake->recorded.load()) return kHipNotReady;
  return machine().fault();
}

ATLAS_HIP_EXPORT HipResult hipModuleLoadData(HipModule* module, const void* image) {
  ATLAS_FAKE_BEGIN();
  Module* loaded = nullptr;
  switch (machine().load(image, &loaded)) {
    case Load::kInvalid:
      return kHipInvalidImage;
    case Load::kOtherArchitecture:
      return kHipNoBinaryForGpu;
    case Load::kOk:
      break;
  }
  *module = reinterpret_cast<HipModule>(loaded);
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipModuleUnload(HipModule module) {
  ATLAS_FAKE_BEGIN();
  machine().unload(reinterpret_cast<Module*>(module));
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipModuleGetFunction(HipFunction* function, HipModule module,
                                                const char* name) {
  ATLAS_FAKE_BEGIN();
  Kernel* kernel = machine().kernel(reinterpret_cast<Module*>(module), name);
  if (kernel == nullptr) return kHipNotFound;
  kernel->allowed_shared = 64 * 1024;
  *function = reinterpret_cast<HipFunction>(kernel);
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipFuncGetAttribute(int* value, int attribute, HipFunction) {
  ATLAS_FAKE_BEGIN();
  *value = attribute == kHipFuncMaxThreadsPerBlock ? int{kMostThreads} : 0;
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipModuleLaunchKernel(HipFunction function, unsigned int grid_x,
                                                 unsigned int grid_y, unsigned int grid_z,
                                                 unsigned int block_x, unsigned int block_y,
                                                 unsigned int block_z, unsigned int shared_bytes,
                                                 HipStream stream, void** params, void** extra) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_stream(stream_of(stream)) || extra != nullptr) return kHipInvalidValue;
  Launch launch;
  if (!machine().prepare(kernel_of(function), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                         shared_bytes, params[0], &launch)) {
    return kHipInvalidValue;
  }
  machine().submit(stream_of(stream), {launch});
  return kHipSuccess;
}

ATLAS_HIP_EXPORT HipResult hipGraphCreate(HipGraph* graph, unsigned int) {
  ATLAS_FAKE_BEGIN();
  *graph = reinterpret_cast<HipGraph>(machine().open_graph());
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipGraphDestroy(HipGraph graph) {
  ATLAS_FAKE_BEGIN();
  machine().close_graph(graph_of(graph));
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipGraphAddKernelNode(HipGraphNode* node, HipGraph graph,
                                                 const HipGraphNode* after, size_t after_count,
                                                 const HipKernelNodeParams* params) {
  ATLAS_FAKE_BEGIN();
  Node added;
  const HipDim3& grid = params->grid;
  const HipDim3& block = params->block;
  if (!machine().prepare(kernel_of(params->func), {grid.x, grid.y, grid.z},
                         {block.x, block.y, block.z}, params->shared_bytes,
                         params->kernel_params[0], &added.launch)) {
    return kHipInvalidValue;
  }
  for (size_t i = 0; i < after_count; ++i) {
    added.after.push_back(reinterpret_cast<Node*>(after[i]));
  }
  graph_of(graph)->nodes.push_back(std::move(added));
  *node = reinterpret_cast<HipGraphNode>(&graph_of(graph)->nodes.back());
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipGraphInstantiateWithFlags(HipGraphExec* executable, HipGraph graph,
                                                        unsigned long long) {
  ATLAS_FAKE_BEGIN();
  Executable* made = machine().instantiate(*graph_of(graph));
  if (made == nullptr) return kHipInvalidValue;
  *executable = reinterpret_cast<HipGraphExec>(made);
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipGraphUpload(HipGraphExec, HipStream stream) {
  ATLAS_FAKE_BEGIN();
  return machine().has_stream(stream_of(stream)) ? kHipSuccess : kHipInvalidValue;
}
ATLAS_HIP_EXPORT HipResult hipGraphLaunch(HipGraphExec executable, HipStream stream) {
  ATLAS_FAKE_BEGIN();
  if (!machine().has_stream(stream_of(stream))) return kHipInvalidValue;
  machine().submit(stream_of(stream), executable_of(executable)->launches);
  return kHipSuccess;
}
ATLAS_HIP_EXPORT HipResult hipGraphExecDestroy(HipGraphExec executable) {
  ATLAS_FAKE_BEGIN();
  machine().close_executable(executable_of(executable));
  return kHipSuccess;
}
