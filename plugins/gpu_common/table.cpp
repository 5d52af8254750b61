// Each function is a thin layer between the C contract and the classes.
#include "plugins/gpu_common/table.h"

#include <atomic>
#include <string>

#include "plugins/gpu_common/step.h"
#include "plugins/gpu_common/stream.h"
#include "plugins/sdk/guard.h"

using atlas::sdk::fail;
using atlas::sdk::Failure;
namespace gpu = atlas::gpu;

// The contract's opaque types.
struct AtlasDevice {
  gpu::Device device;
};
struct AtlasStream {
  gpu::Stream stream;
};
struct AtlasEvent {
  gpu::Event event;
};
struct AtlasStep {
  gpu::Step step;
};

namespace {

std::atomic<const AtlasHost*> the_host{nullptr};

void warn(const std::string& text) {
  const AtlasHost* host = the_host.load();
  if (host != nullptr && host->log != nullptr) host->log(ATLAS_LOG_WARNING, text.c_str());
}

template <typename Body>
AtlasCode run(AtlasError* error, Body&& body) noexcept {
  return atlas::sdk::guarded(error, [&]() -> AtlasCode {
    body();
    return ATLAS_OK;
  });
}

void device_close(AtlasDevice* device) { delete device; }

AtlasCode device_info(AtlasDevice* device, AtlasDeviceInfo* info, AtlasError* error) {
  return run(error, [&] {
    if (info->struct_size < sizeof(AtlasDeviceInfo)) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "AtlasDeviceInfo is shorter than ABI 1.0's");
    }
    device->device.info(info);
  });
}

AtlasCode memory_alloc(AtlasDevice* device, AtlasMemoryKind kind, uint64_t bytes,
                       AtlasAddress* address, AtlasError* error) {
  return run(error, [&] { *address = device->device.alloc(kind, bytes); });
}

AtlasCode memory_free(AtlasDevice* device, AtlasMemoryKind kind, AtlasAddress address,
                      AtlasError* error) {
  return run(error, [&] { device->device.free(kind, address); });
}

AtlasCode stream_create(AtlasDevice* device, AtlasStream** stream, AtlasError* error) {
  return run(error, [&] { *stream = new AtlasStream{gpu::Stream(device->device)}; });
}

void stream_destroy(AtlasStream* stream) { delete stream; }

AtlasCode stream_synchronize(AtlasStream* stream, AtlasError* error) {
  return run(error, [&] { stream->stream.synchronize(); });
}

AtlasCode copy_to_device(AtlasStream* stream, AtlasAddress to, const void* from, uint64_t bytes,
                         AtlasError* error) {
  return run(error, [&] { stream->stream.copy_to_device(to, from, bytes); });
}

AtlasCode copy_to_host(AtlasStream* stream, void* to, AtlasAddress from, uint64_t bytes,
                       AtlasError* error) {
  return run(error, [&] { stream->stream.copy_to_host(to, from, bytes); });
}

AtlasCode fill(AtlasStream* stream, AtlasAddress to, uint8_t value, uint64_t bytes,
               AtlasError* error) {
  return run(error, [&] { stream->stream.fill(to, value, bytes); });
}

AtlasCode event_create(AtlasDevice* device, AtlasEvent** event, AtlasError* error) {
  return run(error, [&] { *event = new AtlasEvent{gpu::Event(device->device)}; });
}

void event_destroy(AtlasEvent* event) { delete event; }

AtlasCode event_record(AtlasEvent* event, AtlasStream* stream, AtlasError* error) {
  return run(error, [&] { event->event.record(stream->stream); });
}

AtlasCode event_wait(AtlasEvent* event, uint64_t timeout_ns, AtlasError* error) {
  bool done = true;
  const AtlasCode code = run(error, [&] { done = event->event.wait(timeout_ns); });
  if (code != ATLAS_OK || done) return code;
  return fail(error, ATLAS_DEADLINE_EXCEEDED, "the work before the event is not done in time");
}

AtlasCode module_load(AtlasDevice* device, const char* path, AtlasModule** module,
                      AtlasError* error) {
  // A module belongs to its device, so its handle is the object itself.
  return run(error,
             [&] { *module = reinterpret_cast<AtlasModule*>(device->device.load_module(path)); });
}

AtlasCode module_kernel(AtlasModule* module, const char* name, AtlasKernel* kernel,
                        AtlasError* error) {
  return run(error, [&] { *kernel = reinterpret_cast<gpu::Module*>(module)->kernel(name); });
}

void module_release(AtlasModule* module) {
  // What fails here has lost the device, which every later call says.
  (void)run(nullptr, [&] { reinterpret_cast<gpu::Module*>(module)->release(); });
}

AtlasCode step_create(AtlasDevice* device, const AtlasLaunch* launches, uint32_t count,
                      AtlasStepMode mode, AtlasStep** step, AtlasError* error) {
  return run(error,
             [&] { *step = new AtlasStep{gpu::Step(device->device, launches, count, mode)}; });
}

void step_destroy(AtlasStep* step) { delete step; }

AtlasCode step_launch(AtlasStep* step, AtlasStream* stream, AtlasError* error) {
  return run(error, [&] { stream->stream.launch(step->step); });
}

}  // namespace

namespace atlas::gpu {

AtlasCode open_device(const AtlasDeviceOptions* options, const char* runtime_name, OpenRuntime open,
                      AtlasDevice** device, AtlasError* error) {
  return run(error, [&] {
    if (options == nullptr || options->struct_size < sizeof(AtlasDeviceOptions)) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "AtlasDeviceOptions is shorter than ABI 1.0's");
    }
    const Options parsed = parse_options(*options, runtime_name);
    std::unique_ptr<Runtime> runtime = open(parsed);
    // Before a model is planned for memory that cannot be had.
    if (const std::string advice = runtime->memory_advice(); !advice.empty()) {
      warn("platform '" + parsed.platform + "': " + advice);
    }
    *device = new AtlasDevice{Device(std::move(runtime), parsed)};
  });
}

void set_host(const AtlasHost* host) { the_host.store(host); }

AtlasPlatformApi platform_table(DeviceOpen open) {
  AtlasPlatformApi api{};
  api.struct_size = sizeof(AtlasPlatformApi);
  api.device_open = open;
  api.device_close = device_close;
  api.device_info = device_info;
  api.memory_alloc = memory_alloc;
  api.memory_free = memory_free;
  api.stream_create = stream_create;
  api.stream_destroy = stream_destroy;
  api.stream_synchronize = stream_synchronize;
  api.copy_to_device = copy_to_device;
  api.copy_to_host = copy_to_host;
  api.fill = fill;
  api.event_create = event_create;
  api.event_destroy = event_destroy;
  api.event_record = event_record;
  api.event_wait = event_wait;
  api.module_load = module_load;
  api.module_kernel = module_kernel;
  api.step_create = step_create;
  api.step_destroy = step_destroy;
  api.step_launch = step_launch;
  api.module_release = module_release;
  return api;
}

}  // namespace atlas::gpu
