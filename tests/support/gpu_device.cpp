// See gpu_device.h. Errors of the device are exceptions: a test program has nothing else to do
// then.
#include "tests/support/gpu_device.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "daemon/plugin_host/packs.h"
#include "tests/support/arguments.h"
#include "tests/support/build_folder.h"
#include "tests/support/gpu_target.h"

namespace atlas::test {
namespace {

constexpr uint64_t kGuardBytes = 4096;
constexpr uint8_t kGuard = 0xc7;
// Of memory that nothing has written. As float32 or bf16 both are numbers that show in a sum.
constexpr uint8_t kEagerPattern = 0x7f;  // NaN
constexpr uint8_t kGraphPattern = 0xc1;
constexpr auto kPatience = std::chrono::seconds(60);

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

template <typename T>
T take_value(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().to_string());
  return std::move(*result);
}

const AtlasPlatformApi* load_plugin(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  const auto entry = reinterpret_cast<AtlasPluginEntry>(::dlsym(library, ATLAS_PLUGIN_ENTRY));
  static const AtlasHost host = {sizeof(AtlasHost), ATLAS_ABI_MAJOR, ATLAS_ABI_MINOR, 0,
                                 [](AtlasLogLevel, const char*) {}};
  AtlasError error{};
  error.struct_size = sizeof(error);
  const AtlasPlugin* plugin = entry == nullptr ? nullptr : entry(&host, &error);
  if (plugin == nullptr) throw std::runtime_error(path + ": " + error.message);
  return plugin->platform;
}

simt::Fault fault(simt::FaultKind kind, const std::string& text) {
  simt::Fault fault;
  fault.kind = kind;
  fault.text = text;
  return fault;
}

}  // namespace

// ---- What the command line asks for
// ------------------------------------------------------------------

namespace {
const OptionText kDevice(
    "--device h200|gb10|strix-hip",
    "runs on the GPU of this machine instead of in the emulator (docs/gpu.md)");
const OptionText kGuards("--guards off",
                         "on a GPU: no guards around buffers, for tools that know their bounds");
}  // namespace

const std::string& gpu_device() {
  static const std::string platform = argument("device");
  return platform;
}

namespace {
const std::vector<const char*>& platforms() {
  static const std::vector<const char*> all =
      gpu_device().empty() ? std::vector<const char*>{"h200", "gb10", "strix-hip"}
                           : std::vector<const char*>{gpu_device().c_str()};
  return all;
}
}  // namespace

const char* const* GpuPlatforms::begin() const { return platforms().data(); }
const char* const* GpuPlatforms::end() const { return platforms().data() + platforms().size(); }

std::unique_ptr<GpuBackend> make_device_backend(const std::string& platform) {
  if (gpu_device().empty()) return nullptr;
  if (platform != gpu_device()) {
    throw std::runtime_error("a test runs for platform " + platform + " with --device " +
                             gpu_device());
  }
  static const std::shared_ptr<GpuDevice> gpu = GpuDevice::open(platform);
  const std::string guards = argument("guards");
  return std::make_unique<DeviceBackend>(gpu, guards == "off" ? 0 : kGuardBytes);
}

// ---- GpuDevice
// ------------------------------------------------------------------------------------------

GpuDevice::GpuDevice(std::shared_ptr<Device> device, const std::vector<std::string>& packs,
                     std::map<std::string, uint64_t> digests)
    : device_(std::move(device)),
      stream_(take_value(device_->create_stream())),
      side_(take_value(device_->create_stream())),
      digests_(std::move(digests)) {
  for (const std::string& pack : packs) modules_.push_back(take_value(device_->load_module(pack)));
}

std::shared_ptr<GpuDevice> GpuDevice::open(const std::string& platform) {
  const std::string library = build_folder() + "/lib/atlas";
  const char* plugin = platform == "strix-hip" ? "platform_hip.so" : "platform_cuda.so";
  const auto device =
      take_value(Device::open(load_plugin(library + "/plugins/" + plugin), platform, {}));
  const auto index =
      take_value(plugin_host::PackIndex::read(platform, library + "/kernels/" + platform));
  std::vector<std::string> packs;
  for (const plugin_host::PackFile& file : index.files()) packs.push_back(file.path);
  std::map<std::string, uint64_t> digests;
  for (const auto& [name, kernel] : index.kernels()) digests.emplace(name, kernel.digest);
  return std::make_shared<GpuDevice>(device, packs, std::move(digests));
}

AtlasKernel GpuDevice::kernel(const std::string& name, uint64_t params_digest) {
  const auto digest = digests_.find(name);
  if (digest != digests_.end() && digest->second != params_digest) {
    throw std::runtime_error("kernel " + name + " takes other parameters");
  }
  for (const Module& module : modules_) {
    auto kernel = module.kernel(name);
    if (kernel) return *kernel;
    if (kernel.error().code() != Code::kNotFound) require(kernel.error());
  }
  throw std::runtime_error("the packs have no kernel " + name);
}

// ---- DeviceBackend
// --------------------------------------------------------------------------------------

DeviceBackend::DeviceBackend(std::shared_ptr<GpuDevice> gpu, uint64_t guard_bytes)
    : gpu_(std::move(gpu)), guard_bytes_(guard_bytes) {}

void* DeviceBackend::add(const std::string& name, const void* values, uint64_t bytes,
                         bool writable) {
  auto buffer = std::make_unique<Buffer>();
  buffer->name = name;
  buffer->writable = writable;
  buffer->memory = take_value(
      gpu_->device()->alloc(MemoryKind::kDevice, std::max<uint64_t>(bytes, 1) + 2 * guard_bytes_));
  buffer->values.resize(bytes);
  buffer->written.assign(bytes, values != nullptr);
  if (values != nullptr && bytes != 0) std::memcpy(buffer->values.data(), values, bytes);
  buffers_.push_back(std::move(buffer));
  return reinterpret_cast<void*>(address(*buffers_.back()));
}

DeviceBackend::Buffer& DeviceBackend::at(const void* place) {
  for (const auto& buffer : buffers_) {
    if (address(*buffer) == reinterpret_cast<uint64_t>(place)) return *buffer;
  }
  throw std::runtime_error("an address that is no buffer's begin");
}

void DeviceBackend::copy_out(const void* place, std::vector<uint8_t>& bytes,
                             std::vector<bool>& written) {
  Buffer& buffer = at(place);
  if (running_ && !buffer.values.empty()) {
    require(gpu_->side().copy_to_host(buffer.values.data(), address(buffer), buffer.values.size()));
  }
  bytes = buffer.values;
  written = buffer.written;
}

void DeviceBackend::copy_in(const void* place, uint64_t offset, const void* from, uint64_t bytes) {
  Buffer& buffer = at(place);
  if (bytes > buffer.values.size() || offset > buffer.values.size() - bytes) {
    throw std::runtime_error("a write past the end of buffer " + buffer.name);
  }
  if (bytes == 0) return;
  std::memcpy(buffer.values.data() + offset, from, bytes);
  std::fill_n(buffer.written.begin() + static_cast<long>(offset), bytes, true);
  if (!running_) return;
  require(gpu_->side().copy_to_device(address(buffer) + offset, from, bytes));
  require(gpu_->side().synchronize());
}

// Brings every buffer onto the device, `pattern` where nothing was written, guards around it.
void DeviceBackend::place(uint8_t pattern) {
  for (const auto& buffer : buffers_) {
    std::vector<uint8_t> all(buffer->values.size() + 2 * guard_bytes_, kGuard);
    for (size_t i = 0; i < buffer->values.size(); ++i) {
      all[guard_bytes_ + i] = buffer->written[i] ? buffer->values[i] : pattern;
    }
    if (all.empty()) continue;
    require(gpu_->stream().copy_to_device(buffer->memory.address(), all.data(), all.size()));
  }
}

// What the buffers hold after a run; damage to guards and inputs is a fault.
std::vector<std::vector<uint8_t>> DeviceBackend::collect(simt::Report& report) {
  std::vector<std::vector<uint8_t>> found;
  for (const auto& buffer : buffers_) {
    std::vector<uint8_t> all(buffer->values.size() + 2 * guard_bytes_);
    if (!all.empty()) {
      require(gpu_->stream().copy_to_host(all.data(), buffer->memory.address(), all.size()));
    }
    const auto begin = all.begin() + static_cast<long>(guard_bytes_);
    const auto end = all.end() - static_cast<long>(guard_bytes_);
    const auto untouched = [](uint8_t byte) { return byte == kGuard; };
    if (!std::all_of(all.begin(), begin, untouched) || !std::all_of(end, all.end(), untouched)) {
      const auto after = std::find_if_not(end, all.end(), untouched);
      report.faults.push_back(fault(
          simt::FaultKind::kOutOfBounds,
          "a write outside of buffer " + buffer->name +
              (after == all.end() ? ", before its begin"
                                  : ", " + std::to_string(after - end) + " bytes past its end")));
    }
    found.emplace_back(begin, end);
    if (!buffer->writable && found.back() != buffer->values) {
      report.faults.push_back(
          fault(simt::FaultKind::kReadOnly, "a write to input " + buffer->name));
    }
  }
  return found;
}

void DeviceBackend::run_once(const Launch& launch, StepMode mode,
                             const std::function<bool()>& host) {
  const StepExecutable step =
      take_value(StepExecutable::create(gpu_->device(), std::span(&launch, 1), mode));
  Event mark = take_value(gpu_->device()->create_event());
  require(gpu_->stream().synchronize());
  running_ = true;
  require(step.launch(gpu_->stream()));
  require(mark.record(gpu_->stream()));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const Status status = mark.wait(std::chrono::microseconds(host == nullptr ? 1'000'000 : 200));
    if (status.ok()) break;
    if (status.code() != Code::kDeadlineExceeded) require(status);
    if (std::chrono::steady_clock::now() > deadline) {
      // A kernel that hangs hangs for ever, and nothing else can be run beside it.
      throw std::runtime_error("the launch of " + launch.name + " does not end");
    }
    if (host != nullptr) (void)host();
  }
  running_ = false;
}

// Bytes that both runs left at their pattern are unwritten; all others must agree.
void DeviceBackend::merge(const std::vector<std::vector<uint8_t>>& eager,
                          const std::vector<std::vector<uint8_t>>& graph, const std::string& kernel,
                          simt::Report& report) {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    Buffer& buffer = *buffers_[b];
    uint64_t differing = 0;
    uint64_t first = 0;
    for (size_t i = 0; i < buffer.values.size(); ++i) {
      const bool untouched =
          !buffer.written[i] && eager[b][i] == kEagerPattern && graph[b][i] == kGraphPattern;
      if (untouched) continue;
      buffer.written[i] = true;
      buffer.values[i] = graph[b][i];
      if (eager[b][i] != graph[b][i] && differing++ == 0) first = i;
    }
    if (differing == 0) continue;
    report.faults.push_back(
        fault(simt::FaultKind::kUnwritten,
              "kernel " + kernel + " left other bytes in buffer " + buffer.name +
                  " when it ran again, as a graph and over another pattern in unwritten memory: " +
                  std::to_string(differing) + " of them, the first at " + std::to_string(first)));
  }
}

// After a run that cannot be repeated, as the host took part: what differs from the pattern, by
// words of four bytes, was written.
void DeviceBackend::take_over(const std::vector<std::vector<uint8_t>>& found) {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    Buffer& buffer = *buffers_[b];
    for (size_t word = 0; word < buffer.values.size(); word += 4) {
      const size_t end = std::min(word + 4, buffer.values.size());
      bool touched = false;
      for (size_t i = word; i < end; ++i) {
        touched = touched || buffer.written[i] || found[b][i] != kGraphPattern;
      }
      for (size_t i = word; touched && i < end; ++i) {
        buffer.written[i] = true;
        buffer.values[i] = found[b][i];
      }
    }
  }
}

simt::Report DeviceBackend::run(const std::string& kernel, uint64_t params_digest,
                                const void* params, uint64_t params_bytes,
                                const GpuLaunch& launch) {
  Launch record;
  record.kernel = gpu_->kernel(kernel, params_digest);
  record.grid = {launch.shape.x, launch.shape.y, launch.shape.z};
  record.block = {launch.shape.threads, 1, 1};
  record.shared_bytes = launch.shape.shared_bytes;
  record.params = {static_cast<const std::byte*>(params), params_bytes};
  record.name = kernel;
  simt::Report report;
  if (launch.host != nullptr) {
    place(kGraphPattern);
    run_once(record, StepMode::kGraph, launch.host);
    take_over(collect(report));
    return report;
  }
  place(kEagerPattern);
  run_once(record, StepMode::kEager, nullptr);
  const auto eager = collect(report);
  place(kGraphPattern);
  run_once(record, StepMode::kGraph, nullptr);
  const auto graph = collect(report);
  merge(eager, graph, kernel, report);
  return report;
}

}  // namespace atlas::test
