// HIP has one context a device, made current by its number. A fault of a kernel usually ends the
// process (the runtime below HIP aborts it); what comes back as a result is treated as a lost
// device.
#include "plugins/platform_hip/hip_runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/gpu_common/image.h"
#include "plugins/platform_hip/mapped_memory.h"
#include "plugins/platform_hip/runtime_api.h"
#include "plugins/sdk/guard.h"

namespace atlas::platform_hip {
namespace {

using gpu::Answer;
using gpu::Outcome;
using sdk::Failure;

constexpr std::string_view kPlatform = "strix-hip";
constexpr std::string_view kArchitecture = "gfx1151";
// A dispatch packet counts threads, not blocks, in 32 bits a side.
constexpr uint64_t kMaxGridThreads = 0xffffffffu;

std::string describe(const RuntimeApi& api, int result) {
  const char* name = api.hipGetErrorName(result);
  const char* text = api.hipGetErrorString(result);
  return std::string(name == nullptr ? "an error without a name" : name) + " (" +
         std::to_string(result) + ")" + (text == nullptr ? "" : std::string(": ") + text);
}

Outcome outcome_of(int result) {
  switch (result) {
    case kHipSuccess:
      return Outcome::kOk;
    case kHipNotReady:
      return Outcome::kNotReady;
    case kHipOutOfMemory:
      return Outcome::kOutOfMemory;
    case kHipNotFound:
      return Outcome::kNotFound;
    case kHipInvalidImage:
    case kHipNoBinaryForGpu:
    case kHipInvalidKernelFile:
    case kHipInvalidSource:
    case kHipSharedObjectInitFailed:
      return Outcome::kBadCode;
    case kHipNotSupported:
      return Outcome::kUnsupported;
    case kHipDeinitialized:
    case kHipPriorLaunchFailure:
    case kHipEccNotCorrectable:
    case kHipIllegalAddress:
    case kHipLaunchTimeOut:
    case kHipContextIsDestroyed:
    case kHipAssert:
    case kHipLaunchFailure:
    case kHipRuntimeMemory:
    case kHipRuntimeOther:
      return Outcome::kLost;
    default:
      return Outcome::kFailed;
  }
}

HipStream stream_of(void* stream) { return static_cast<HipStream>(stream); }
HipEvent event_of(void* event) { return static_cast<HipEvent>(event); }
HipGraph graph_of(void* graph) { return static_cast<HipGraph>(graph); }
HipGraphExec executable_of(void* executable) { return static_cast<HipGraphExec>(executable); }
void* pointer_of(uint64_t address) { return reinterpret_cast<void*>(address); }

// A call with the name of its entry point, which the error will say.
#define ATLAS_HIP_CALL(name, ...) \
  Answer { #name, api_.name(__VA_ARGS__) }

class HipRuntime final : public gpu::Runtime {
 public:
  HipRuntime(const RuntimeApi& api, int device, gpu::Facts facts, std::string pci)
      : api_(api), device_(device), facts_(std::move(facts)), pci_(std::move(pci)) {}

  const gpu::Facts& facts() const override { return facts_; }
  Outcome outcome(int result) const override { return outcome_of(result); }
  std::string describe(int result) const override { return platform_hip::describe(api_, result); }

  std::string architecture_of(const std::vector<char>& image) const override {
    // EM_AMDGPU and EF_AMDGPU_MACH of LLVM's AMDGPU guide.
    constexpr uint16_t kAmdGpu = 224;
    const gpu::ImageHead head = gpu::image_head(image);
    if (head.machine != kAmdGpu) return {};
    const uint32_t machine = head.flags & 0xff;
    return machine == 0x4a ? "gfx1151" : "AMD machine " + std::to_string(machine);
  }

  std::string memory_advice() const override { return memory().advice(); }

  Answer bind() override { return ATLAS_HIP_CALL(hipSetDevice, device_); }
  void abandon() override {}

  Answer budget(gpu::Budget* budget) override {
    size_t free = 0;
    size_t total = 0;
    const Answer answer = ATLAS_HIP_CALL(hipMemGetInfo, &free, &total);
    *budget = {total, std::min<uint64_t>(free, memory().left())};
    return answer;
  }

  Answer alloc_device(uint64_t bytes, uint64_t* address) override {
    void* pointer = nullptr;
    const Answer answer = ATLAS_HIP_CALL(hipMalloc, &pointer, bytes);
    *address = reinterpret_cast<uint64_t>(pointer);
    return answer;
  }
  Answer free_device(uint64_t address) override {
    return ATLAS_HIP_CALL(hipFree, pointer_of(address));
  }
  Answer alloc_pinned(uint64_t bytes, void** host, uint64_t* device) override {
    const Answer answer =
        ATLAS_HIP_CALL(hipHostMalloc, host, bytes,
                       kHipHostMallocPortable | kHipHostMallocMapped | kHipHostMallocCoherent);
    if (answer.result != kHipSuccess) return answer;
    void* pointer = nullptr;
    const Answer mapped = ATLAS_HIP_CALL(hipHostGetDevicePointer, &pointer, *host, 0);
    *device = reinterpret_cast<uint64_t>(pointer);
    if (mapped.result != kHipSuccess) (void)api_.hipHostFree(*host);
    return mapped;
  }
  Answer free_pinned(void* host) override { return ATLAS_HIP_CALL(hipHostFree, host); }

  Answer stream_create(void** stream) override {
    return ATLAS_HIP_CALL(hipStreamCreateWithFlags, reinterpret_cast<HipStream*>(stream),
                          kHipStreamNonBlocking);
  }
  Answer stream_destroy(void* stream) override {
    return ATLAS_HIP_CALL(hipStreamDestroy, stream_of(stream));
  }
  Answer stream_query(void* stream) override {
    return ATLAS_HIP_CALL(hipStreamQuery, stream_of(stream));
  }
  Answer event_create(void** event) override {
    return ATLAS_HIP_CALL(hipEventCreateWithFlags, reinterpret_cast<HipEvent*>(event),
                          kHipEventDisableTiming);
  }
  Answer event_destroy(void* event) override {
    return ATLAS_HIP_CALL(hipEventDestroy, event_of(event));
  }
  Answer event_record(void* event, void* stream) override {
    return ATLAS_HIP_CALL(hipEventRecord, event_of(event), stream_of(stream));
  }
  Answer event_query(void* event) override {
    return ATLAS_HIP_CALL(hipEventQuery, event_of(event));
  }

  Answer copy_to_device(uint64_t to, const void* from, uint64_t bytes, void* stream) override {
    return ATLAS_HIP_CALL(hipMemcpyAsync, pointer_of(to), from, bytes, kHipHostToDevice,
                          stream_of(stream));
  }
  Answer copy_to_host(void* to, uint64_t from, uint64_t bytes, void* stream) override {
    return ATLAS_HIP_CALL(hipMemcpyAsync, to, pointer_of(from), bytes, kHipDeviceToHost,
                          stream_of(stream));
  }
  Answer fill(uint64_t to, uint8_t value, uint64_t bytes, void* stream) override {
    return ATLAS_HIP_CALL(hipMemsetAsync, pointer_of(to), value, bytes, stream_of(stream));
  }

  Answer module_load(const void* image, void** module) override {
    return ATLAS_HIP_CALL(hipModuleLoadData, reinterpret_cast<HipModule*>(module), image);
  }
  Answer module_unload(void* module) override {
    return ATLAS_HIP_CALL(hipModuleUnload, static_cast<HipModule>(module));
  }
  Answer module_kernel(void* module, const char* symbol, gpu::Kernel* kernel) override;
  Answer allow_shared(void*, uint32_t) override {
    // A block has its 64 KiB without asking.
    return {"shared memory", kHipSuccess};
  }

  Answer launch(const gpu::Shape& shape, void* stream) override {
    void* params[] = {const_cast<void*>(shape.params)};
    return ATLAS_HIP_CALL(hipModuleLaunchKernel, static_cast<HipFunction>(shape.kernel),
                          shape.grid[0], shape.grid[1], shape.grid[2], shape.block[0],
                          shape.block[1], shape.block[2], shape.shared_bytes, stream_of(stream),
                          params, nullptr);
  }

  Answer graph_create(void** graph) override {
    return ATLAS_HIP_CALL(hipGraphCreate, reinterpret_cast<HipGraph*>(graph), 0);
  }
  Answer graph_destroy(void* graph) override {
    return ATLAS_HIP_CALL(hipGraphDestroy, graph_of(graph));
  }
  Answer graph_add(void* graph, std::span<const gpu::Edge> after, const gpu::Shape& shape,
                   void** node) override {
    void* params[] = {const_cast<void*>(shape.params)};
    HipKernelNodeParams launch{};
    launch.func = shape.kernel;
    launch.grid = {shape.grid[0], shape.grid[1], shape.grid[2]};
    launch.block = {shape.block[0], shape.block[1], shape.block[2]};
    launch.shared_bytes = shape.shared_bytes;
    launch.kernel_params = params;  // the runtime copies what it points to
    std::vector<HipGraphNode> before;
    for (const gpu::Edge& edge : after) before.push_back(static_cast<HipGraphNode>(edge.node));
    return ATLAS_HIP_CALL(hipGraphAddKernelNode, reinterpret_cast<HipGraphNode*>(node),
                          graph_of(graph), before.data(), before.size(), &launch);
  }
  Answer graph_instantiate(void* graph, void** executable) override {
    return ATLAS_HIP_CALL(hipGraphInstantiateWithFlags, reinterpret_cast<HipGraphExec*>(executable),
                          graph_of(graph), 0);
  }
  Answer graph_upload(void* executable, void* stream) override {
    // Without it the first launch does this work.
    if (api_.hipGraphUpload == nullptr) return {"hipGraphUpload", kHipSuccess};
    return ATLAS_HIP_CALL(hipGraphUpload, executable_of(executable), stream_of(stream));
  }
  Answer graph_launch(void* executable, void* stream) override {
    return ATLAS_HIP_CALL(hipGraphLaunch, executable_of(executable), stream_of(stream));
  }
  Answer graph_release(void* executable) override {
    return ATLAS_HIP_CALL(hipGraphExecDestroy, executable_of(executable));
  }

 private:
  MappedMemory memory() const { return read_mapped_memory("/sys", pci_); }

  RuntimeApi api_;
  int device_;
  gpu::Facts facts_;
  std::string pci_;
};

Answer HipRuntime::module_kernel(void* module, const char* symbol, gpu::Kernel* kernel) {
  HipFunction function = nullptr;
  const Answer found =
      ATLAS_HIP_CALL(hipModuleGetFunction, &function, static_cast<HipModule>(module), symbol);
  if (found.result != kHipSuccess) return found;
  kernel->handle = function;
  int threads = 0;
  const Answer limit =
      ATLAS_HIP_CALL(hipFuncGetAttribute, &threads, kHipFuncMaxThreadsPerBlock, function);
  if (limit.result != kHipSuccess) return limit;
  kernel->max_block_threads = static_cast<uint32_t>(std::max(threads, 0));
  int shared = 0;
  const Answer size =
      ATLAS_HIP_CALL(hipFuncGetAttribute, &shared, kHipFuncSharedSizeBytes, function);
  kernel->static_shared_bytes = static_cast<uint32_t>(std::max(shared, 0));
  return size;
}

#undef ATLAS_HIP_CALL

// ---- Opening
// --------------------------------------------------------------------------------------

struct Found {
  int ordinal;
  HipDeviceProperties properties;
  std::string architecture;

  std::string text() const {
    return "device " + std::to_string(ordinal) + " is " + properties.name + ", " + architecture;
  }
};

void check(const RuntimeApi& api, const char* call, int result) {
  if (result == kHipSuccess) return;
  throw Failure(ATLAS_FAILED_PRECONDITION,
                std::string(call) + " answered " + describe(api, result) + "; " + kRuntimeAdvice);
}

std::vector<Found> devices_of(const RuntimeApi& api) {
  int count = 0;
  const int counted = api.hipGetDeviceCount(&count);
  if (counted == kHipNoDevice) return {};
  check(api, "hipGetDeviceCount", counted);
  std::vector<Found> found;
  for (int i = 0; i < count; ++i) {
    // A runtime with a longer struct writes behind the one that is known.
    struct {
      HipDeviceProperties properties;
      char slack[4096];
    } answer{};
    check(api, "hipGetDevicePropertiesR0600",
          api.hipGetDevicePropertiesR0600(&answer.properties, i));
    HipDeviceProperties& properties = answer.properties;
    properties.name[sizeof(properties.name) - 1] = '\0';
    properties.architecture[sizeof(properties.architecture) - 1] = '\0';
    const std::string_view architecture = properties.architecture;
    found.push_back({i, properties, std::string(architecture.substr(0, architecture.find(':')))});
  }
  return found;
}

Found choose(const std::vector<Found>& devices, const gpu::Options& options) {
  if (options.platform != kPlatform) {
    throw Failure(ATLAS_INVALID_ARGUMENT,
                  "platform '" + options.platform + "' is not this plugin's: strix-hip");
  }
  const std::string wanted =
      std::string(kArchitecture) + ", which platform '" + options.platform + "' is built for";
  std::string list;
  for (const Found& device : devices) {
    list += (list.empty() ? "" : "; ") + device.text();
    const bool fits = device.architecture == kArchitecture;
    const bool named = options.device && device.ordinal == static_cast<int>(*options.device);
    if (fits && (named || !options.device)) return device;
    if (named) {
      throw Failure(ATLAS_NOT_FOUND, "platform option 'device' is " +
                                         std::to_string(*options.device) + ", and " +
                                         device.text() + " instead of " + wanted);
    }
  }
  const std::string which =
      options.device ? "device " + std::to_string(*options.device) : "device of " + wanted;
  throw Failure(ATLAS_NOT_FOUND,
                "HIP has no " + which + ": " + (list.empty() ? "there is none" : list));
}

gpu::Facts facts_of(const RuntimeApi& api, const Found& found) {
  int version = 0;
  check(api, "hipRuntimeGetVersion", api.hipRuntimeGetVersion(&version));
  const HipDeviceProperties& properties = found.properties;
  gpu::Facts facts;
  facts.name = properties.name;
  facts.architecture = found.architecture;
  facts.runtime = "HIP " + version_text(version);
  facts.unified = true;  // every GPU of this architecture is part of an APU
  const auto positive = [](int value) { return static_cast<uint32_t>(std::max(value, 0)); };
  facts.compute_units = positive(properties.multiprocessors);
  facts.max_block_threads = positive(properties.max_threads_per_block);
  facts.shared_bytes = static_cast<uint32_t>(properties.shared_bytes_per_block);
  facts.most_shared_bytes = facts.shared_bytes;
  facts.max_grid_threads = kMaxGridThreads;
  for (int side = 0; side < 3; ++side) {
    facts.max_block[side] = positive(properties.max_block[side]);
    facts.max_grid[side] = positive(properties.max_grid[side]);
  }
  return facts;
}

std::string pci_of(const HipDeviceProperties& properties) {
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.0", properties.pci_domain & 0xffff,
                properties.pci_bus & 0xff, properties.pci_device & 0xff);
  return text;
}

}  // namespace

std::unique_ptr<gpu::Runtime> open_hip(const gpu::Options& options) {
  const RuntimeApi api = open_runtime();
  const int started = api.hipInit(0);
  if (started != kHipNoDevice) check(api, "hipInit", started);
  const Found found = choose(devices_of(api), options);
  gpu::Facts facts = facts_of(api, found);
  check(api, "hipSetDevice", api.hipSetDevice(found.ordinal));
  return std::make_unique<HipRuntime>(api, found.ordinal, std::move(facts),
                                      pci_of(found.properties));
}

}  // namespace atlas::platform_hip
