// Platform cpu: the table of functions, each a thin layer between the C contract and the classes.
#include <sched.h>

#include <memory>
#include <string>
#include <system_error>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/platform_cpu/device.h"
#include "plugins/platform_cpu/stream.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"

namespace cpu = atlas::platform_cpu;
using atlas::sdk::fail;
using atlas::sdk::Failure;

// The contract's opaque types.
struct AtlasDevice {
  cpu::Device device;
};
struct AtlasStream {
  cpu::Device& device;
  cpu::Stream stream;
};
struct AtlasEvent {
  cpu::Event event;
};
struct AtlasStep {
  std::unique_ptr<cpu::Step> step;
};

namespace {

constexpr size_t kDeviceOptionsSize = sizeof(AtlasDeviceOptions);
constexpr size_t kDeviceInfoSize = sizeof(AtlasDeviceInfo);

template <typename Body>
AtlasCode run(AtlasError* error, Body&& body) noexcept {
  return atlas::sdk::guarded(error, [&]() -> AtlasCode {
    try {
      body();
      return ATLAS_OK;
    } catch (const std::system_error& thrown) {
      return fail(error, ATLAS_RESOURCE_EXHAUSTED,
                  std::string("a thread cannot be started: ") + thrown.what());
    }
  });
}

AtlasCode device_open(const AtlasDeviceOptions* options, AtlasDevice** device, AtlasError* error) {
  return run(error, [&] {
    if (options == nullptr || options->struct_size < kDeviceOptionsSize) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "AtlasDeviceOptions is shorter than ABI 1.0's");
    }
    *device = new AtlasDevice{cpu::Device(cpu::parse_options(*options))};
  });
}

void device_close(AtlasDevice* device) { delete device; }

AtlasCode device_info(AtlasDevice* device, AtlasDeviceInfo* info, AtlasError* error) {
  return run(error, [&] {
    if (info->struct_size < kDeviceInfoSize) {
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
  return run(error, [&] {
    *stream = new AtlasStream{device->device, cpu::Stream(device->device.team())};
  });
}

void stream_destroy(AtlasStream* stream) { delete stream; }

AtlasCode stream_synchronize(AtlasStream* stream, AtlasError* error) {
  return run(error, [&] { stream->stream.synchronize(); });
}

AtlasCode copy_to_device(AtlasStream* stream, AtlasAddress to, const void* from, uint64_t bytes,
                         AtlasError* error) {
  return run(error, [&] {
    stream->device.check_range("copy to the device", to, bytes);
    if (bytes == 0) return;
    void* target = reinterpret_cast<void*>(to);
    if (stream->device.is_pinned(from, bytes)) {
      stream->stream.copy(target, from, bytes);
    } else {
      stream->stream.copy_now(target, from, bytes);
    }
  });
}

AtlasCode copy_to_host(AtlasStream* stream, void* to, AtlasAddress from, uint64_t bytes,
                       AtlasError* error) {
  return run(error, [&] {
    stream->device.check_range("copy to the host", from, bytes);
    if (bytes == 0) return;
    const void* source = reinterpret_cast<const void*>(from);
    if (stream->device.is_pinned(to, bytes)) {
      stream->stream.copy(to, source, bytes);
    } else {
      stream->stream.copy_now(to, source, bytes);
    }
  });
}

AtlasCode fill(AtlasStream* stream, AtlasAddress to, uint8_t value, uint64_t bytes,
               AtlasError* error) {
  return run(error, [&] {
    stream->device.check_range("fill", to, bytes);
    if (bytes != 0) stream->stream.fill(reinterpret_cast<void*>(to), value, bytes);
  });
}

AtlasCode event_create(AtlasDevice*, AtlasEvent** event, AtlasError* error) {
  return run(error, [&] { *event = new AtlasEvent; });
}

void event_destroy(AtlasEvent* event) { delete event; }

AtlasCode event_record(AtlasEvent* event, AtlasStream* stream, AtlasError* error) {
  return run(error, [&] { event->event.record(stream->stream); });
}

AtlasCode event_wait(AtlasEvent* event, uint64_t timeout_ns, AtlasError* error) {
  AtlasCode code = ATLAS_OK;
  const AtlasCode thrown = run(error, [&] {
    if (!event->event.wait(timeout_ns)) {
      code = fail(error, ATLAS_DEADLINE_EXCEEDED, "the work before the event is not done in time");
    }
  });
  return thrown == ATLAS_OK ? code : thrown;
}

AtlasCode module_load(AtlasDevice* device, const char* path, AtlasModule** module,
                      AtlasError* error) {
  // A module belongs to its device, so its handle is the object itself.
  return run(error,
             [&] { *module = reinterpret_cast<AtlasModule*>(device->device.load_module(path)); });
}

AtlasCode module_kernel(AtlasModule* module, const char* name, AtlasKernel* kernel,
                        AtlasError* error) {
  return run(error, [&] { *kernel = reinterpret_cast<cpu::Module*>(module)->kernel(name); });
}

void module_release(AtlasModule* module) { reinterpret_cast<cpu::Module*>(module)->release(); }

AtlasCode step_create(AtlasDevice* device, const AtlasLaunch* launches, uint32_t count,
                      AtlasStepMode mode, AtlasStep** step, AtlasError* error) {
  return run(error,
             [&] { *step = new AtlasStep{device->device.create_step(launches, count, mode)}; });
}

void step_destroy(AtlasStep* step) {
  // The caller promised that nothing is pending; waiting costs nothing then, and is better than a
  // crash if the promise was wrong.
  while (step->step->pending.load(std::memory_order_acquire) != 0) ::sched_yield();
  delete step;
}

AtlasCode step_launch(AtlasStep* step, AtlasStream* stream, AtlasError* error) {
  return run(error, [&] { stream->stream.launch(*step->step); });
}

constexpr AtlasPlatformApi kApi = {
    .struct_size = sizeof(AtlasPlatformApi),
    .reserved = 0,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .copy_to_device = copy_to_device,
    .copy_to_host = copy_to_host,
    .fill = fill,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .module_load = module_load,
    .module_kernel = module_kernel,
    .step_create = step_create,
    .step_destroy = step_destroy,
    .step_launch = step_launch,
    .module_release = module_release,
};

constexpr AtlasPlugin kPlugin = {
    .struct_size = sizeof(AtlasPlugin),
    .abi_major = ATLAS_ABI_MAJOR,
    .abi_minor = ATLAS_ABI_MINOR,
    .kind = ATLAS_KIND_PLATFORM,
    .quant = nullptr,
    .attention = nullptr,
    .platform = &kApi,
    .shutdown = nullptr,
};

}  // namespace

ATLAS_DESCRIPTOR(atlas::sdk::describe(atlas::sdk::Identity{ATLAS_KIND_PLATFORM, "cpu", "0.1.0",
                                                           "Apache-2.0"},
                                      std::array<std::string_view, 1>{"cpu"},
                                      std::array<AtlasDescriptorKernel, 0>{}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  if (host == nullptr || host->abi_major != ATLAS_ABI_MAJOR) {
    fail(error, ATLAS_FAILED_PRECONDITION, "platform cpu is built for ABI 1");
    return nullptr;
  }
  return &kPlugin;
}
