// Device and what comes from it: each call converts its answer in Device::note.
#include "daemon/device/device.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <limits>

#include "daemon/base/log.h"
#include "daemon/device/abi_call.h"

namespace atlas {
namespace {

// Every function of ABI 1.0, by name, so that a refusal can say which one a plugin left out.
std::string_view missing_function(const AtlasPlatformApi& api) {
#define ATLAS_REQUIRE_FUNCTION(name) \
  if (api.name == nullptr) return #name
  ATLAS_REQUIRE_FUNCTION(device_open);
  ATLAS_REQUIRE_FUNCTION(device_close);
  ATLAS_REQUIRE_FUNCTION(device_info);
  ATLAS_REQUIRE_FUNCTION(memory_alloc);
  ATLAS_REQUIRE_FUNCTION(memory_free);
  ATLAS_REQUIRE_FUNCTION(stream_create);
  ATLAS_REQUIRE_FUNCTION(stream_destroy);
  ATLAS_REQUIRE_FUNCTION(stream_synchronize);
  ATLAS_REQUIRE_FUNCTION(copy_to_device);
  ATLAS_REQUIRE_FUNCTION(copy_to_host);
  ATLAS_REQUIRE_FUNCTION(fill);
  ATLAS_REQUIRE_FUNCTION(event_create);
  ATLAS_REQUIRE_FUNCTION(event_destroy);
  ATLAS_REQUIRE_FUNCTION(event_record);
  ATLAS_REQUIRE_FUNCTION(event_wait);
  ATLAS_REQUIRE_FUNCTION(module_load);
  ATLAS_REQUIRE_FUNCTION(module_kernel);
  ATLAS_REQUIRE_FUNCTION(step_create);
  ATLAS_REQUIRE_FUNCTION(step_destroy);
  ATLAS_REQUIRE_FUNCTION(step_launch);
#undef ATLAS_REQUIRE_FUNCTION
  return {};
}

Status check_api(const AtlasPlatformApi* api) {
  if (api == nullptr) return failed_precondition("the plugin has no platform table");
  // ABI 1.0's table ends with step_launch; a longer one comes from a later minor version.
  constexpr size_t kLeast = offsetof(AtlasPlatformApi, step_launch) + sizeof(api->step_launch);
  if (api->struct_size < kLeast) {
    return failed_precondition(
        "the plugin's platform table has {} bytes, ABI {}.0 needs {}: rebuild the plugin",
        api->struct_size, ATLAS_ABI_MAJOR, kLeast);
  }
  if (const std::string_view name = missing_function(*api); !name.empty()) {
    return failed_precondition("the plugin's platform table has no '{}'", name);
  }
  return Status();
}

template <size_t N>
std::string text_of(const char (&array)[N]) {
  return std::string(array, ::strnlen(array, N));
}

}  // namespace

struct Stream::Handle {
  std::shared_ptr<Device> device;
  AtlasStream* stream;
  Handle(std::shared_ptr<Device> d, AtlasStream* s) : device(std::move(d)), stream(s) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { device->api_->stream_destroy(stream); }
};

struct Event::Handle {
  std::shared_ptr<Device> device;
  AtlasEvent* event;
  Handle(std::shared_ptr<Device> d, AtlasEvent* e) : device(std::move(d)), event(e) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { device->api_->event_destroy(event); }
};

struct StepExecutable::Handle {
  std::shared_ptr<Device> device;
  AtlasStep* step;
  StepMode mode;
  Handle(std::shared_ptr<Device> d, AtlasStep* s, StepMode m)
      : device(std::move(d)), step(s), mode(m) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { device->api_->step_destroy(step); }
};

struct Module::Handle {
  std::shared_ptr<Device> device;
  AtlasModule* module;
  std::string path;
  Handle(std::shared_ptr<Device> d, AtlasModule* m, std::string p)
      : device(std::move(d)), module(m), path(std::move(p)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    const AtlasPlatformApi& api = *device->api_;
    // A plugin of before ABI 1.3 keeps its modules until the device is closed.
    constexpr size_t kEnd = offsetof(AtlasPlatformApi, module_release) + sizeof(api.module_release);
    if (api.struct_size >= kEnd && api.module_release != nullptr) api.module_release(module);
  }
};

// ---- Device
// ---------------------------------------------------------------------------------------

Device::Device(const AtlasPlatformApi* api, AtlasDevice* handle, std::shared_ptr<const void> owner)
    : api_(api), handle_(handle), owner_(std::move(owner)) {}

Device::~Device() { api_->device_close(handle_); }

Status Device::note(AtlasCode code, const AtlasError& error, std::string_view what) {
  if (code == ATLAS_OK) return Status();
  Status status = abi::to_status(what, code, error);
  if (code == ATLAS_UNAVAILABLE) {
    const std::lock_guard lock(mutex_);
    if (lost_reason_.ok()) {
      lost_reason_ = status;
      log_error("the device is lost: {}", status.message());
    }
    // Orders lost_reason_ before what a reader of lost_ does next.
    lost_.store(true, std::memory_order_release);
  }
  return status;
}

template <typename Call>
Status Device::call(std::string_view what, Call&& function) {
  if (lost()) return lost_reason();
  AtlasError error;
  // Only what is read: clearing the whole message would be a kilobyte a launch for nothing.
  error.struct_size = sizeof(error);
  error.message[0] = '\0';
  try {
    return note(function(&error), error, what);
  } catch (const std::exception& thrown) {
    return internal_error("{}: the plugin threw an exception: {}", what, thrown.what());
  } catch (...) {
    return internal_error("{}: the plugin threw an exception", what);
  }
}

Status Device::lost_reason() const {
  const std::lock_guard lock(mutex_);
  return lost_reason_;
}

Result<std::shared_ptr<Device>> Device::open(const AtlasPlatformApi* api,
                                             const std::string& platform, const Options& options,
                                             std::shared_ptr<const void> owner) {
  ATLAS_RETURN_IF_ERROR(check_api(api));
  std::vector<AtlasOption> list;
  list.reserve(options.size());
  for (const auto& [key, value] : options) list.push_back({key.c_str(), value.c_str()});
  AtlasDeviceOptions abi{};
  abi.struct_size = sizeof(abi);
  abi.option_count = static_cast<uint32_t>(list.size());
  abi.platform = platform.c_str();
  abi.options = list.data();
  AtlasDevice* handle = nullptr;
  const std::string what = fmt::format("opening platform '{}'", platform);
  ATLAS_RETURN_IF_ERROR(abi::call(what, api->device_open, &abi, &handle));
  if (handle == nullptr) return internal_error("{}: the plugin gave no device and no error", what);
  return std::shared_ptr<Device>(new Device(api, handle, std::move(owner)));
}

Result<DeviceInfo> Device::info() {
  AtlasDeviceInfo abi{};
  abi.struct_size = sizeof(abi);
  ATLAS_RETURN_IF_ERROR(call(
      "device info", [&](AtlasError* error) { return api_->device_info(handle_, &abi, error); }));
  DeviceInfo info;
  info.unified_memory = abi.unified_memory != 0;
  info.supports_graphs = abi.supports_graphs != 0;
  info.name = text_of(abi.name);
  info.architecture = text_of(abi.architecture);
  info.memory_bytes = abi.memory_bytes;
  info.available_bytes = abi.available_bytes;
  info.compute_units = abi.compute_units;
  return info;
}

Result<DeviceBuffer> Device::alloc(MemoryKind kind, uint64_t bytes) {
  if (bytes == 0) return invalid_argument("allocating device memory: 0 bytes were asked for");
  AtlasAddress address = 0;
  ATLAS_RETURN_IF_ERROR(call("allocating device memory", [&](AtlasError* error) {
    return api_->memory_alloc(handle_, static_cast<AtlasMemoryKind>(kind), bytes, &address, error);
  }));
  DeviceBuffer buffer(shared_from_this(), kind, address, bytes);
  allocated_[static_cast<uint32_t>(kind)].fetch_add(bytes, std::memory_order_relaxed);
  if (address == 0 || address % 256 != 0) {
    return internal_error(
        "allocating device memory: the platform's address {:#x} is not 256-byte "
        "aligned",
        address);
  }
  return buffer;
}

Result<Stream> Device::create_stream() {
  AtlasStream* stream = nullptr;
  ATLAS_RETURN_IF_ERROR(call("creating a stream", [&](AtlasError* error) {
    return api_->stream_create(handle_, &stream, error);
  }));
  return Stream(std::make_shared<Stream::Handle>(shared_from_this(), stream));
}

Result<Event> Device::create_event() {
  AtlasEvent* event = nullptr;
  ATLAS_RETURN_IF_ERROR(call("creating an event", [&](AtlasError* error) {
    return api_->event_create(handle_, &event, error);
  }));
  return Event(std::make_shared<Event::Handle>(shared_from_this(), event));
}

Result<Module> Device::load_module(const std::string& path) {
  AtlasModule* module = nullptr;
  ATLAS_RETURN_IF_ERROR(call("loading a kernel pack", [&](AtlasError* error) {
    return api_->module_load(handle_, path.c_str(), &module, error);
  }));
  return Module(std::make_shared<Module::Handle>(shared_from_this(), module, path));
}

// ---- DeviceBuffer
// ---------------------------------------------------------------------------------

DeviceBuffer::DeviceBuffer(std::shared_ptr<Device> device, MemoryKind kind, AtlasAddress address,
                           uint64_t bytes)
    : device_(std::move(device)), address_(address), bytes_(bytes), kind_(kind) {}

DeviceBuffer::~DeviceBuffer() {
  if (device_ != nullptr) device_->release(*this);
}

void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(kind_, other.kind_);
}

std::span<std::byte> DeviceBuffer::host() const {
  if (kind_ != MemoryKind::kPinned) return {};
  return {reinterpret_cast<std::byte*>(address_), static_cast<size_t>(bytes_)};
}

void Device::release(const DeviceBuffer& buffer) noexcept {
  allocated_[static_cast<uint32_t>(buffer.kind())].fetch_sub(buffer.bytes(),
                                                             std::memory_order_relaxed);
  AtlasError error{};
  error.struct_size = sizeof(error);
  const AtlasCode code = api_->memory_free(handle_, static_cast<AtlasMemoryKind>(buffer.kind()),
                                           buffer.address(), &error);
  // A lost device has said so already, and its memory is gone with it.
  if (code == ATLAS_OK || code == ATLAS_UNAVAILABLE) return;
  try {
    log_error("{}", abi::to_status("freeing device memory", code, error).message());
  } catch (...) {
    // Without memory for a log line there is nothing left to say.
  }
}

// ---- Stream and Event
// -----------------------------------------------------------------------------

Status Stream::copy_to_device(AtlasAddress to, const void* from, uint64_t bytes) {
  return handle_->device->call("copying to the device", [&](AtlasError* error) {
    return handle_->device->api_->copy_to_device(handle_->stream, to, from, bytes, error);
  });
}

Status Stream::copy_to_host(void* to, AtlasAddress from, uint64_t bytes) {
  return handle_->device->call("copying to the host", [&](AtlasError* error) {
    return handle_->device->api_->copy_to_host(handle_->stream, to, from, bytes, error);
  });
}

Status Stream::fill(AtlasAddress to, uint8_t value, uint64_t bytes) {
  return handle_->device->call("filling device memory", [&](AtlasError* error) {
    return handle_->device->api_->fill(handle_->stream, to, value, bytes, error);
  });
}

Status Stream::synchronize() {
  return handle_->device->call("waiting for a stream", [&](AtlasError* error) {
    return handle_->device->api_->stream_synchronize(handle_->stream, error);
  });
}

Status Event::record(const Stream& stream) {
  return handle_->device->call("recording an event", [&](AtlasError* error) {
    return handle_->device->api_->event_record(handle_->event, stream.handle_->stream, error);
  });
}

Status Event::wait(std::chrono::nanoseconds timeout) const {
  const auto timeout_ns = static_cast<uint64_t>(std::max<int64_t>(timeout.count(), 0));
  return handle_->device->call("waiting for an event", [&](AtlasError* error) {
    return handle_->device->api_->event_wait(handle_->event, timeout_ns, error);
  });
}

Result<bool> Event::query() const {
  bool done = true;
  const Status status = handle_->device->call("asking for an event", [&](AtlasError* error) {
    const AtlasCode code = handle_->device->api_->event_wait(handle_->event, 0, error);
    // "Not yet" is an answer here and no error: a loop that polls makes no message of it.
    if (code != ATLAS_DEADLINE_EXCEEDED) return code;
    done = false;
    return static_cast<AtlasCode>(ATLAS_OK);
  });
  if (!status.ok()) return status;
  return done;
}

// ---- Module and StepExecutable
// --------------------------------------------------------------------

const std::string& Module::path() const { return handle_->path; }

Result<AtlasKernel> Module::kernel(const std::string& name) const {
  AtlasKernel kernel = 0;
  Device& device = *handle_->device;
  ATLAS_RETURN_IF_ERROR(device.call("resolving a kernel", [&](AtlasError* error) {
    return device.api_->module_kernel(handle_->module, name.c_str(), &kernel, error);
  }));
  return kernel;
}

Result<StepExecutable> StepExecutable::create(const std::shared_ptr<Device>& device,
                                              std::span<const Launch> launches, StepMode mode) {
  if (launches.size() > std::numeric_limits<uint32_t>::max()) {
    return invalid_argument("creating a step: {} launches are too many", launches.size());
  }
  std::vector<AtlasLaunch> list;
  list.reserve(launches.size());
  for (const Launch& launch : launches) {
    AtlasLaunch abi{};
    abi.struct_size = sizeof(abi);
    abi.params_size = static_cast<uint32_t>(launch.params.size());
    abi.kernel = launch.kernel;
    for (int i = 0; i < 3; ++i) {
      abi.grid[i] = launch.grid[i];
      abi.block[i] = launch.block[i];
    }
    abi.shared_bytes = launch.shared_bytes;
    abi.params = launch.params.data();
    abi.name = launch.name.c_str();
    abi.after = launch.after.data();
    abi.after_count = static_cast<uint32_t>(launch.after.size());
    list.push_back(abi);
  }
  AtlasStep* step = nullptr;
  ATLAS_RETURN_IF_ERROR(device->call("creating a step", [&](AtlasError* error) {
    return device->api_->step_create(device->handle_, list.data(),
                                     static_cast<uint32_t>(list.size()),
                                     static_cast<AtlasStepMode>(mode), &step, error);
  }));
  return StepExecutable(std::make_shared<Handle>(device, step, mode));
}

Status StepExecutable::launch(const Stream& stream) const {
  return handle_->device->call("launching a step", [&](AtlasError* error) {
    return handle_->device->api_->step_launch(handle_->step, stream.handle_->stream, error);
  });
}

StepMode StepExecutable::mode() const { return handle_->mode; }

}  // namespace atlas
