// Memory comes from mmap in whole pages, kernels from dlopen.
#include "plugins/platform_cpu/device.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "plugins/platform_cpu/machine.h"
#include "plugins/sdk/guard.h"

namespace atlas::platform_cpu {

using sdk::Failure;

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

Failure out_of_memory(uint64_t bytes, const std::string& found) {
  return Failure(ATLAS_RESOURCE_EXHAUSTED,
                 std::to_string(bytes) + " bytes were asked for; " + found);
}

// Whole pages; from 2 MiB on aligned to, and asking for, huge pages. The mapping begins where it is
// returned: what alignment leaves over is given back.
void* map_pages(uint64_t bytes) {
  const bool huge = bytes >= kHugePage;
  const uint64_t slack = huge ? kHugePage : 0;
  void* raw =
      ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw out_of_memory(bytes, std::strerror(errno));
  if (!huge) return raw;
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = round_up(begin, kHugePage);
  if (aligned != begin) ::munmap(raw, aligned - begin);
  if (const uintptr_t rest = begin + slack - aligned; rest != 0) {
    ::munmap(reinterpret_cast<void*>(aligned + bytes), rest);
  }
  // Fewer page walks, where the kernel has huge pages to give; without them nothing is lost.
  (void)::madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

uint32_t thread_count(const Options& options) {
  return options.threads != 0 ? options.threads : default_threads();
}

std::vector<int> cores_to_pin(const Options& options) {
  return options.pin ? usable_cores() : std::vector<int>();
}

}  // namespace

// ---- Module
// ---------------------------------------------------------------------------------------

Module::Module(Device& device, const std::string& path) : device_(device) {
  // A full path keeps dlopen from searching; what is loaded is what was named.
  char* full = ::realpath(path.c_str(), nullptr);
  if (full == nullptr) {
    throw Failure(ATLAS_NOT_FOUND, "kernel pack '" + path + "': " + std::strerror(errno));
  }
  path_ = full;
  std::free(full);
  handle_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* reason = ::dlerror();
    throw Failure(ATLAS_FAILED_PRECONDITION, "kernel pack '" + path_ + "' cannot be loaded: " +
                                                 (reason == nullptr ? "no reason given" : reason));
  }
}

Module::~Module() { ::dlclose(handle_); }

AtlasKernel Module::kernel(const std::string& name) {
  const std::string symbol = "atlas_kernel_" + name;
  void* function = ::dlsym(handle_, symbol.c_str());
  if (function == nullptr) {
    throw Failure(ATLAS_NOT_FOUND, "kernel pack '" + path_ + "' has no kernel '" + name +
                                       "' (symbol " + symbol + ")");
  }
  const auto kernel = reinterpret_cast<AtlasKernel>(function);
  device_.add_kernel(*this, kernel);
  return kernel;
}

void Module::release() { device_.release_module(this); }

// ---- Device
// ---------------------------------------------------------------------------------------

Device::Device(const Options& options) : team_(thread_count(options), cores_to_pin(options)) {}

Device::~Device() {
  for (const auto& [address, entry] : allocations_.entries()) {
    ::munmap(reinterpret_cast<void*>(address), round_up(entry.bytes, kPage));
  }
}

void Device::info(AtlasDeviceInfo* info) {
  const Memory now = memory();
  info->unified_memory = 1;
  sdk::copy_text(info->name, processor_name() + ", " + std::to_string(team_.threads()) +
                                 (team_.threads() == 1 ? " thread" : " threads"));
  sdk::copy_text(info->architecture, instruction_set());
  info->memory_bytes = now.total_bytes;
  info->available_bytes = now.available_bytes;
  info->compute_units = team_.threads();
  info->supports_graphs = 1;
}

AtlasAddress Device::alloc(AtlasMemoryKind kind, uint64_t bytes) {
  if (kind != ATLAS_MEMORY_DEVICE && kind != ATLAS_MEMORY_PINNED) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "memory kind " + std::to_string(kind) + " is unknown");
  }
  if (bytes == 0) throw Failure(ATLAS_INVALID_ARGUMENT, "0 bytes of memory were asked for");
  const uint64_t total = memory().total_bytes;
  const std::lock_guard lock(mutex_);
  // The system would promise more than there is, and end the process when it is touched.
  if (total != 0 && (bytes > total || allocated_bytes_ > total - bytes)) {
    throw out_of_memory(bytes, std::to_string(allocated_bytes_) +
                                   " are allocated and the machine has " + std::to_string(total));
  }
  const auto address = reinterpret_cast<AtlasAddress>(map_pages(round_up(bytes, kPage)));
  allocations_.add(address, {bytes, kind});
  allocated_bytes_ += bytes;
  return address;
}

void Device::free(AtlasMemoryKind kind, AtlasAddress address) {
  const std::lock_guard lock(mutex_);
  const uint64_t bytes = allocations_.remove(kind, address).bytes;
  ::munmap(reinterpret_cast<void*>(address), round_up(bytes, kPage));
  allocated_bytes_ -= bytes;
}

void Device::check_range(const char* what, AtlasAddress address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  allocations_.check(what, address, bytes);
}

bool Device::is_pinned(const void* address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return allocations_.is_pinned(address, bytes);
}

Module* Device::load_module(const std::string& path) {
  auto module = std::make_unique<Module>(*this, path);
  const std::lock_guard lock(mutex_);
  modules_.push_back(std::move(module));
  return modules_.back().get();
}

void Device::release_module(Module* module) {
  const std::lock_guard lock(mutex_);
  std::erase_if(modules_, [&](const auto& one) { return one.get() == module; });
}

void Device::add_kernel(Module& module, AtlasKernel kernel) {
  const std::lock_guard lock(mutex_);
  module.kernels_.insert(kernel);
}

// Loads of one file have the same kernels, so each module counts its own.
bool Device::knows_kernel(AtlasKernel kernel) {
  const std::lock_guard lock(mutex_);
  return std::any_of(modules_.begin(), modules_.end(),
                     [&](const auto& module) { return module->kernels_.contains(kernel); });
}

// The largest block so far serves every step that needs no more: steps run one at a time, so they
// may share it, and what they share stays in the caches. Older steps keep the block they began
// with.
std::shared_ptr<const ScratchBlock> Device::scratch_for(uint32_t bytes) {
  const std::lock_guard lock(mutex_);
  if (scratch_ == nullptr || scratch_->bytes() < bytes) {
    scratch_ = std::make_shared<const ScratchBlock>(team_.threads(), bytes);
  }
  return scratch_;
}

std::unique_ptr<Step> Device::create_step(const AtlasLaunch* launches, uint32_t count,
                                          AtlasStepMode mode) {
  const sdk::LaunchList list(launches, count, mode,
                             [this](AtlasKernel kernel) { return knows_kernel(kernel); });
  return std::make_unique<Step>(list, mode, [this](uint32_t bytes) { return scratch_for(bytes); });
}

}  // namespace atlas::platform_cpu
