// The fake GPU that runs the kernels of real packs, in the emulator: a module's file says which
// kernels there are and how large their parameters are, the emulated pack of the platform has their
// code. What the emulator calls a fault ends the device, with the report on the error output.
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

#include "tests/support/build_folder.h"
#include "tests/support/fake_gpu/machine.h"
#include "tests/support/simt/machine.h"

namespace atlas::fake_gpu {
namespace {

constexpr int kIllegalAddress = 700;  // of CUDA and HIP alike

Elf64_Ehdr head_of(const char* image) {
  Elf64_Ehdr head;
  std::memcpy(&head, image, sizeof(head));
  return head;
}

/// The section `name` of an image that has been checked for being whole.
std::vector<unsigned char> section(const std::vector<char>& image, const std::string& name) {
  const Elf64_Ehdr head = head_of(image.data());
  const auto at = [&](uint32_t i) {
    Elf64_Shdr part;
    std::memcpy(&part, image.data() + head.e_shoff + i * sizeof(part), sizeof(part));
    return part;
  };
  const Elf64_Shdr names = at(head.e_shstrndx);
  for (uint32_t i = 0; i < head.e_shnum; ++i) {
    const Elf64_Shdr part = at(i);
    if (name == image.data() + names.sh_offset + part.sh_name) {
      const char* begin = image.data() + part.sh_offset;
      return {begin, begin + part.sh_size};
    }
  }
  return {};
}

/// The bytes of a kernel's parameters, from its section of attributes: entries of a form, an
/// attribute and two bytes of value, or of length for form 4; the attribute for the size is 0x19
/// (read off the output of ptxas 13.0). 0: no such kernel.
uint32_t params_bytes(const std::vector<char>& image, const std::string& symbol) {
  const std::vector<unsigned char> info = section(image, ".nv.info." + symbol);
  for (size_t at = 0; at + 4 <= info.size();) {
    const uint32_t value = info[at + 2] | info[at + 3] << 8;
    if (info[at] == 3 && info[at + 1] == 0x19) return value;
    at += 4 + (info[at] == 4 ? value : 0);
  }
  return 0;
}

class EmulatedMachine final : public Machine {
 public:
  explicit EmulatedMachine(const Script& script)
      : Machine(script), capacity_(script.devices[0].memory_bytes) {}
  ~EmulatedMachine() override { stop(); }

  std::byte* memory(uint64_t address) override {
    const std::lock_guard lock(buffers_mutex_);
    const auto& [begin, buffer] = *--buffers_.upper_bound(address);
    return buffer.storage + (address - begin);
  }
  void wrote(uint64_t address, uint64_t bytes) override {
    const std::lock_guard lock(buffers_mutex_);
    const auto& [begin, buffer] = *--buffers_.upper_bound(address);
    machine_.mark_written(reinterpret_cast<void*>(begin), address - begin, bytes);
  }

  Load load(const void* image, Module** module) override {
    const auto* bytes = static_cast<const char*>(image);
    const Elf64_Ehdr head = head_of(bytes);
    if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return Load::kInvalid;
    uint64_t size = std::max(head.e_shoff + uint64_t{head.e_shnum} * head.e_shentsize,
                             head.e_phoff + uint64_t{head.e_phnum} * head.e_phentsize);
    for (uint32_t i = 0; i < head.e_shnum; ++i) {
      Elf64_Shdr part;
      std::memcpy(&part, bytes + head.e_shoff + i * sizeof(part), sizeof(part));
      if (part.sh_type != SHT_NOBITS) size = std::max(size, part.sh_offset + part.sh_size);
    }
    *module = keep(new Module{nullptr, {bytes, bytes + size}});
    return Load::kOk;
  }

  Kernel* kernel(Module* module, const char* symbol) override {
    const uint32_t bytes = params_bytes(module->image, symbol);
    if (bytes == 0) return nullptr;
    const std::string name = std::string(symbol).substr(std::strlen("atlas_kernel_"));
    void* function = ::dlsym(pack(), symbol);
    const void* threads = ::dlsym(pack(), ("atlas_threads_" + name).c_str());
    if (function == nullptr || threads == nullptr) return nullptr;
    auto kernel = std::make_unique<Kernel>();
    kernel->lane = reinterpret_cast<decltype(kernel->lane)>(function);
    kernel->name = name;
    kernel->params_bytes = bytes;
    kernel->threads = *static_cast<const uint32_t*>(threads);
    return keep(std::move(kernel));
  }

 protected:
  bool take(uint64_t bytes, uint64_t* address) override {
    const std::lock_guard run_lock(run_mutex_);
    const std::lock_guard lock(buffers_mutex_);
    if (bytes > capacity_ - taken_) return false;
    void* buffer = machine_.output<uint8_t>("memory " + std::to_string(++count_), bytes);
    *address = reinterpret_cast<uint64_t>(buffer);
    buffers_[*address] = {machine_.storage(buffer), bytes};
    taken_ += bytes;
    return true;
  }
  void give_back(uint64_t address) override {
    const std::lock_guard run_lock(run_mutex_);
    const std::lock_guard lock(buffers_mutex_);
    taken_ -= buffers_[address].bytes;
    buffers_.erase(address);
    machine_.remove(reinterpret_cast<void*>(address));
  }
  void took_pinned(void* host, uint64_t bytes) override {
    const std::lock_guard run_lock(run_mutex_);
    machine_.share(host, bytes);
  }
  void giving_back_pinned(void* host) override {
    const std::lock_guard run_lock(run_mutex_);
    machine_.unshare(host);
  }
  void translate(std::vector<std::byte>&) override {}

  void execute(const Launch& launch) override {
    const std::lock_guard run_lock(run_mutex_);
    const simt::Kernel kernel{launch.kernel->name, launch.kernel->lane, launch.kernel->threads};
    simt::Launch how;
    std::copy(launch.grid, launch.grid + 3, how.grid);
    how.threads = launch.block[0] * launch.block[1] * launch.block[2];
    how.shared_bytes = launch.shared_bytes;
    // What a kernel waits for, another thread of the host may bring.
    how.host = [this] {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      return !stopping();
    };
    const simt::Report report = machine_.run_raw(kernel, launch.params.data(), how);
    if (report.ok()) return;
    std::fprintf(stderr, "kernel %s in the emulator: %s\n", kernel.name.c_str(),
                 report.text().c_str());
    set_fault(kIllegalAddress);
  }

 private:
  struct Buffer {
    std::byte* storage;
    uint64_t bytes;
  };

  void* pack() {
    if (pack_ != nullptr) return pack_;
    const bool gb10 = std::strcmp(script().devices[0].architecture, "sm_121") == 0;
    const std::string path =
        test::build_folder() + "/tests/emulated/" + (gb10 ? "gb10" : "h200") + ".so";
    pack_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (pack_ == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
    return pack_;
  }

  // The emulator runs one launch at a time, and its buffers stay as they are meanwhile.
  std::mutex run_mutex_;
  std::mutex buffers_mutex_;  // guards what follows
  simt::Machine machine_;
  void* pack_ = nullptr;  // never closed: fibers may stand in its kernels
  std::map<uint64_t, Buffer> buffers_;
  uint64_t capacity_;
  uint64_t taken_ = 0;
  uint32_t count_ = 0;
};

}  // namespace

std::unique_ptr<Machine> make_machine(const Script& script) {
  if (script.version != 0) return std::make_unique<EmulatedMachine>(script);
  // Without a test that says otherwise.
  Script usual{};
  usual.version = 13000;
  usual.device_count = 1;
  usual.devices[0] = {"NVIDIA H200 in the emulator", "sm_90", 0, uint64_t{8} << 30};
  return std::make_unique<EmulatedMachine>(usual);
}

}  // namespace atlas::fake_gpu
