// Numbers from sysfs, and what follows from them.
#include "plugins/platform_hip/mapped_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>

#include "plugins/gpu_common/machine_memory.h"

namespace atlas::platform_hip {
namespace {

// What stays with the system when the advice is followed.
constexpr uint64_t kKeep = uint64_t{8} << 30;
constexpr uint64_t kMebibyte = uint64_t{1} << 20;

uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : 0;
}

std::string gibibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

uint64_t less(uint64_t from, uint64_t taken) { return from - std::min(from, taken); }

}  // namespace

uint64_t MappedMemory::wall() const {
  return pages_limit == 0 ? gtt_total : std::min(gtt_total, pages_limit);
}

uint64_t MappedMemory::left() const {
  if (maps()) return std::min(less(wall(), gtt_used), machine_available);
  return own_total != 0 ? less(own_total, own_used) : std::numeric_limits<uint64_t>::max();
}

std::string MappedMemory::advice() const {
  if (gtt_total == 0 || machine_total <= 2 * kKeep) return {};
  const uint64_t most = machine_total - kKeep;
  if (!maps()) {
    return "the GPU takes memory from the " + gibibytes(own_total) +
           " that the BIOS gives it; with less than that (512 MiB) it maps the machine's own, now "
           "up "
           "to " +
           gibibytes(wall());
  }
  if (wall() >= most) return {};
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::string pages = std::to_string(most / page);
  return "the GPU may map " + gibibytes(wall()) + " of the machine's " + gibibytes(machine_total) +
         " (amdgpu's GTT " + gibibytes(gtt_total) +
         (pages_limit == 0 ? "" : ", ttm's pages_limit " + gibibytes(pages_limit)) +
         "); the kernel parameters ttm.pages_limit=" + pages + " ttm.page_pool_size=" + pages +
         " amdgpu.gttsize=" + std::to_string(most / kMebibyte) + " raise that to " +
         gibibytes(most);
}

MappedMemory read_mapped_memory(const std::string& root, const std::string& pci) {
  const std::string device = root + "/bus/pci/devices/" + pci + "/mem_info_";
  MappedMemory memory;
  memory.own_total = read_number(device + "vram_total");
  memory.own_used = read_number(device + "vram_used");
  memory.gtt_total = read_number(device + "gtt_total");
  memory.gtt_used = read_number(device + "gtt_used");
  memory.pages_limit = read_number(root + "/module/ttm/parameters/pages_limit") *
                       static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const gpu::MachineMemory machine = gpu::machine_memory();
  memory.machine_total = machine.total_bytes;
  memory.machine_available = machine.available_bytes;
  return memory;
}

}  // namespace atlas::platform_hip
