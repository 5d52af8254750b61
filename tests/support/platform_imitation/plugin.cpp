// The strict imitation of a GPU, as a platform plugin for tests: its memory lies in another
// process, which runs what was recorded, later, in stream order, and fails on request. See
// options.h.
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"
#include "tests/support/platform_imitation/device.h"
#include "tests/support/platform_imitation/options.h"
#include "tests/support/platform_imitation/stream.h"

namespace imitation = atlas::imitation;
using atlas::sdk::fail;
using atlas::sdk::Failure;

// The contract's opaque types.
struct AtlasStream {
  imitation::Device& device;
  imitation::Stream stream;
};
struct AtlasEvent {
  imitation::Device& device;
  std::mutex mutex;  // guards both: one thread may record while another waits
  imitation::SharedStream* stream = nullptr;  // never goes away; its count of commands only grows
  uint64_t ticket = 0;
};
struct AtlasModule {
  AtlasDevice& owner;
  uint64_t id;
};
struct AtlasStep {
  imitation::Device& device;
  uint64_t id;
};
struct AtlasDevice {
  imitation::Device device;
  std::mutex mutex;  // guards modules
  std::vector<std::unique_ptr<AtlasModule>> modules;
};

namespace {

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
    if (options == nullptr || options->struct_size < sizeof(AtlasDeviceOptions)) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "AtlasDeviceOptions is shorter than ABI 1.0's");
    }
    *device = new AtlasDevice{imitation::Device(imitation::parse_options(*options)), {}, {}};
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
  return run(error, [&] {
    *stream = new AtlasStream{device->device, imitation::Stream(device->device)};
  });
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
  return run(error, [&] {
    device->device.check_not_lost();
    *event = new AtlasEvent{device->device, {}, nullptr, 0};
  });
}

void event_destroy(AtlasEvent* event) { delete event; }

AtlasCode event_record(AtlasEvent* event, AtlasStream* stream, AtlasError* error) {
  return run(error, [&] {
    event->device.check_not_lost();
    const std::lock_guard lock(event->mutex);
    event->stream = &stream->device.stream(stream->stream.index());
    event->ticket = stream->stream.submitted();
  });
}

AtlasCode event_wait(AtlasEvent* event, uint64_t timeout_ns, AtlasError* error) {
  AtlasCode code = ATLAS_OK;
  const AtlasCode thrown = run(error, [&] {
    event->device.check_not_lost();
    imitation::SharedStream* stream = nullptr;
    uint64_t ticket = 0;
    {
      const std::lock_guard lock(event->mutex);
      stream = event->stream;
      ticket = event->ticket;
    }
    if (stream != nullptr && !event->device.wait(*stream, ticket, timeout_ns)) {
      code = fail(error, ATLAS_DEADLINE_EXCEEDED, "the work before the event is not done in time");
    }
  });
  return thrown == ATLAS_OK ? code : thrown;
}

AtlasCode module_load(AtlasDevice* device, const char* path, AtlasModule** module,
                      AtlasError* error) {
  return run(error, [&] {
    const uint64_t id = device->device.load_module(path);
    auto loaded = std::make_unique<AtlasModule>(AtlasModule{*device, id});
    const std::lock_guard lock(device->mutex);
    device->modules.push_back(std::move(loaded));
    *module = device->modules.back().get();
  });
}

AtlasCode module_kernel(AtlasModule* module, const char* name, AtlasKernel* kernel,
                        AtlasError* error) {
  return run(error, [&] { *kernel = module->owner.device.find_kernel(module->id, name); });
}

void module_release(AtlasModule* module) {
  AtlasDevice& owner = module->owner;
  owner.device.release_module(module->id);
  const std::lock_guard lock(owner.mutex);
  std::erase_if(owner.modules, [&](const auto& one) { return one.get() == module; });
}

AtlasCode step_create(AtlasDevice* device, const AtlasLaunch* launches, uint32_t count,
                      AtlasStepMode mode, AtlasStep** step, AtlasError* error) {
  return run(error, [&] {
    const uint64_t id = device->device.create_step(launches, count, mode);
    *step = new AtlasStep{device->device, id};
  });
}

void step_destroy(AtlasStep* step) {
  step->device.destroy_step(step->id);
  delete step;
}

AtlasCode step_launch(AtlasStep* step, AtlasStream* stream, AtlasError* error) {
  return run(error, [&] { stream->stream.launch(step->id); });
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

// Platform cpu: it runs the very same kernel pack.
ATLAS_DESCRIPTOR(atlas::sdk::describe(atlas::sdk::Identity{ATLAS_KIND_PLATFORM, "imitation",
                                                           "0.1.0", "Apache-2.0"},
                                      std::array<std::string_view, 1>{"cpu"},
                                      std::array<AtlasDescriptorKernel, 0>{}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  if (host == nullptr || host->abi_major != ATLAS_ABI_MAJOR) {
    fail(error, ATLAS_FAILED_PRECONDITION, "the imitation is built for ABI 1");
    return nullptr;
  }
  return &kPlugin;
}
