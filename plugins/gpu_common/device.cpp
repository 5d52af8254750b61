// Memory, kernels, and how a device is lost.
#include "plugins/gpu_common/device.h"

#include <algorithm>

#include "plugins/gpu_common/image.h"

namespace atlas::gpu {
namespace {

using sdk::Failure;

// What stays free beside our allocations. On a card: what the driver takes for code, graphs and
// launches while a model runs. Where device memory is the machine's: its other programs and the
// page cache, too; a machine that runs short of memory stalls before anything fails.
constexpr uint64_t kCardReserve = uint64_t{256} << 20;
constexpr uint64_t kUnifiedReserve = uint64_t{2} << 30;

AtlasCode code_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOutOfMemory:
      return ATLAS_RESOURCE_EXHAUSTED;
    case Outcome::kNotFound:
      return ATLAS_NOT_FOUND;
    case Outcome::kBadCode:
      return ATLAS_FAILED_PRECONDITION;
    case Outcome::kUnsupported:
      return ATLAS_UNIMPLEMENTED;
    case Outcome::kLost:
      return ATLAS_UNAVAILABLE;
    default:
      return ATLAS_INTERNAL;
  }
}

}  // namespace

// ---- Module
// ---------------------------------------------------------------------------------------

Module::Module(Device& device, const std::string& path, std::vector<char> image)
    : device_(device), path_(path), image_(std::move(image)) {
  Runtime& runtime = device.runtime();
  device.check(runtime.module_load(image_.data(), &handle_), [&] {
    const std::string built = runtime.architecture_of(image_);
    const Facts& facts = runtime.facts();
    return "kernel pack '" + path + "', built for " +
           (built.empty() ? "another kind of machine" : built) + ", on a device of " +
           facts.architecture + " under " + facts.runtime;
  });
}

Module::~Module() {
  if (!device_.is_lost()) (void)device_.runtime().module_unload(handle_);
}

AtlasKernel Module::kernel(const std::string& name) {
  device_.enter();
  const std::lock_guard lock(device_.mutex());
  std::unique_ptr<LoadedKernel>& entry = kernels_[name];
  if (entry == nullptr) {
    const std::string symbol = "atlas_kernel_" + name;
    Kernel kernel;
    const Answer answer = device_.runtime().module_kernel(handle_, symbol.c_str(), &kernel);
    if (answer.result != 0) {
      kernels_.erase(name);
      device_.fail(answer,
                   "kernel pack '" + path_ + "' and kernel '" + name + "' (symbol " + symbol + ")");
    }
    entry = std::make_unique<LoadedKernel>(LoadedKernel{kernel, name, 0});
    device_.add_kernel(entry.get());
  }
  return reinterpret_cast<AtlasKernel>(entry.get());
}

void Module::release() { device_.release_module(this); }

// ---- Device
// ---------------------------------------------------------------------------------------

Device::Device(std::unique_ptr<Runtime> runtime, const Options& options)
    : runtime_(std::move(runtime)),
      options_(options),
      reserve_(
          options.reserve.value_or(runtime_->facts().unified ? kUnifiedReserve : kCardReserve)) {}

Device::~Device() {
  if (is_lost() || runtime_->bind().result != 0) {
    runtime_->abandon();
    return;
  }
  for (const auto& [address, entry] : allocations_.entries()) {
    (void)give_back(entry.kind, address);
  }
  modules_.clear();
}

void Device::enter() {
  check_not_lost();
  check(runtime_->bind());
}

void Device::check_not_lost() {
  if (!is_lost()) return;
  const std::lock_guard lock(lost_mutex_);
  throw Failure(ATLAS_UNAVAILABLE, "device lost: " + lost_reason_);
}

void Device::lose(const std::string& reason) {
  const std::lock_guard lock(lost_mutex_);
  if (lost_.load()) return;
  lost_reason_ = reason;
  // Orders the reason before what a reader of lost_ does next.
  lost_.store(true, std::memory_order_release);
}

std::string Device::last_step() {
  const std::lock_guard lock(step_mutex_);
  return step_ == nullptr ? "no step was submitted" : "the step submitted last is " + *step_;
}

void Device::note_step(const StepText& text) {
  const std::lock_guard lock(step_mutex_);
  step_ = text;
}

void Device::lose_patience(const std::string& context) {
  lose("the device did not finish " + context + " in " + std::to_string(options_.patience_ms) +
       " ms, which is the platform's option patience_ms (if it is slow and not stuck, set it "
       "higher); " +
       last_step());
  check_not_lost();
  throw Failure(ATLAS_UNAVAILABLE, "device lost");
}

void Device::fail(const Answer& answer, const std::string& context) {
  const Outcome outcome = runtime_->outcome(answer.result);
  std::string text = std::string(answer.call) + " answered " + runtime_->describe(answer.result);
  if (!context.empty()) text += " for " + context;
  if (outcome == Outcome::kLost) {
    lose(text + "; " + last_step());
    check_not_lost();
  }
  throw Failure(code_of(outcome), text);
}

// ---- Memory
// ---------------------------------------------------------------------------------------

// What can be had is what is free but for the reserve.
Budget Device::budget() {
  Budget budget{};
  check(runtime_->budget(&budget));
  budget.free_bytes -= std::min(budget.free_bytes, reserve_);
  budget.free_bytes = std::min(budget.free_bytes, budget.total_bytes);
  return budget;
}

void Device::info(AtlasDeviceInfo* info) {
  enter();
  const Facts& facts = runtime_->facts();
  const Budget now = budget();
  info->unified_memory = facts.unified ? 1 : 0;
  sdk::copy_text(info->name, facts.name + ", " + facts.runtime);
  sdk::copy_text(info->architecture, facts.architecture);
  info->memory_bytes = now.total_bytes;
  info->available_bytes = now.free_bytes;
  info->compute_units = facts.compute_units;
  info->supports_graphs = options_.check_launches ? 0 : 1;
}

Answer Device::take(AtlasMemoryKind kind, uint64_t bytes, uint64_t* address) {
  if (kind == ATLAS_MEMORY_DEVICE) return runtime_->alloc_device(bytes, address);
  void* host = nullptr;
  uint64_t device = 0;
  const Answer answer = runtime_->alloc_pinned(bytes, &host, &device);
  if (answer.result != 0) return answer;
  *address = reinterpret_cast<uint64_t>(host);
  if (device == *address) return answer;
  (void)runtime_->free_pinned(host);
  throw Failure(
      ATLAS_UNIMPLEMENTED,
      "pinned memory has another address on the device than on the host; kernels and host "
      "must agree on it (a 64-bit Linux with unified addressing)");
}

Answer Device::give_back(AtlasMemoryKind kind, uint64_t address) {
  if (kind == ATLAS_MEMORY_DEVICE) return runtime_->free_device(address);
  return runtime_->free_pinned(reinterpret_cast<void*>(address));
}

AtlasAddress Device::alloc(AtlasMemoryKind kind, uint64_t bytes) {
  if (kind != ATLAS_MEMORY_DEVICE && kind != ATLAS_MEMORY_PINNED) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "memory kind " + std::to_string(kind) + " is unknown");
  }
  if (bytes == 0) throw Failure(ATLAS_INVALID_ARGUMENT, "0 bytes of memory were asked for");
  enter();
  const Budget now = budget();
  const bool shared = runtime_->facts().unified;
  const auto refuse = [&](const std::string& reason) {
    std::string text = std::to_string(bytes) + " bytes of " +
                       (kind == ATLAS_MEMORY_DEVICE ? "device" : "pinned host") +
                       " memory were asked for; " + std::to_string(now.free_bytes) + " of " +
                       std::to_string(now.total_bytes) + " are free, beside a reserve of " +
                       std::to_string(reserve_) + reason;
    if (const std::string advice = runtime_->memory_advice(); !advice.empty())
      text += "; " + advice;
    return Failure(ATLAS_RESOURCE_EXHAUSTED, text);
  };
  // Of memory that it shares with the machine a driver gives out more than there is, and the
  // machine begins to swap, or ends processes. A card's own memory the driver counts itself.
  if (bytes > now.total_bytes && kind == ATLAS_MEMORY_DEVICE) throw refuse("");
  if (shared && bytes > now.free_bytes) throw refuse("");
  uint64_t address = 0;
  const Answer answer = take(kind, bytes, &address);
  if (runtime_->outcome(answer.result) == Outcome::kOutOfMemory) {
    throw refuse(std::string(" (") + answer.call + " answered " +
                 runtime_->describe(answer.result) + ")");
  }
  check(answer, [&] { return std::to_string(bytes) + " bytes"; });
  const std::lock_guard lock(mutex_);
  allocations_.add(address, {bytes, kind});
  return address;
}

// The runtimes' own free waits for what all streams have to do, without a deadline. So that is
// waited for here first, with one; what is submitted meanwhile is not, or a busy engine would hold
// up a free for ever.
void Device::wait_for_streams() {
  struct Marks {
    Device& device;
    std::vector<void*> events;
    ~Marks() {
      for (void* event : events) {
        if (!device.is_lost()) (void)device.runtime().event_destroy(event);
      }
    }
  } marks{*this, {}};
  {
    const std::lock_guard lock(mutex_);
    marks.events.reserve(streams_.size());
    for (void* stream : streams_) {
      void* event = nullptr;
      check(runtime_->event_create(&event));
      marks.events.push_back(event);
      check(runtime_->event_record(event, stream));
    }
  }
  for (void* event : marks.events) {
    wait([&] { return runtime_->event_query(event); }, kForever,
         [] { return std::string("what must end before memory is freed"); });
  }
}

void Device::free(AtlasMemoryKind kind, AtlasAddress address) {
  {
    const std::lock_guard lock(mutex_);
    allocations_.remove(kind, address);
  }
  enter();
  wait_for_streams();
  check(give_back(kind, address));
}

void Device::check_range(const char* what, AtlasAddress address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  allocations_.check(what, address, bytes);
}

bool Device::is_pinned(const void* address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return allocations_.is_pinned(address, bytes);
}

// ---- Kernels and streams
// --------------------------------------------------------------------------

Module* Device::load_module(const std::string& path) {
  enter();
  std::vector<char> image = read_image(path);
  const std::lock_guard lock(mutex_);
  auto place = std::find_if(modules_.begin(), modules_.end(),
                            [&](const auto& module) { return module->holds(path, image); });
  if (place == modules_.end()) {
    modules_.push_back(std::make_unique<Module>(*this, path, std::move(image)));
    place = modules_.end() - 1;
  }
  ++(*place)->users_;
  return place->get();
}

void Device::release_module(Module* module) {
  std::unique_ptr<Module> last;
  {
    const std::lock_guard lock(mutex_);
    if (--module->users_ != 0) return;
    const auto place = std::find_if(modules_.begin(), modules_.end(),
                                    [&](const auto& one) { return one.get() == module; });
    last = std::move(*place);
    modules_.erase(place);
    for (const auto& [name, kernel] : last->kernels_) {
      kernels_.erase(reinterpret_cast<AtlasKernel>(kernel.get()));
    }
  }
  // The runtime may wait by itself, and without end, for what runs.
  enter();
  wait_for_streams();
}

LoadedKernel* Device::find_kernel(AtlasKernel kernel) {
  const std::lock_guard lock(mutex_);
  return kernels_.contains(kernel) ? reinterpret_cast<LoadedKernel*>(kernel) : nullptr;
}

void Device::add_kernel(const LoadedKernel* kernel) {
  kernels_.insert(reinterpret_cast<AtlasKernel>(kernel));
}

void Device::add_stream(void* stream) {
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
}

void Device::remove_stream(void* stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

}  // namespace atlas::gpu
