// memfd_create and mmap; the allocator is plain, for tests allocate little and seldom.
#include "tests/support/platform_imitation/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "plugins/sdk/guard.h"

namespace atlas::imitation {
namespace {

using sdk::Failure;

constexpr uint64_t kGrain = 512;
constexpr uint64_t kShift = 256;
// Unused by the loaders of the machines we know, and within what thread sanitizer calls memory.
constexpr uint64_t kFirstBase = 0x7e9000000000;
constexpr uint64_t kBaseStep = uint64_t{64} << 30;
constexpr uint32_t kBases = 6;

[[noreturn]] void fail_with_errno(const std::string& what) {
  throw Failure(ATLAS_RESOURCE_EXHAUSTED, what + ": " + std::strerror(errno));
}

}  // namespace

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.fd_;
    other.fd_ = -1;
  }
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File make_memory_file(const char* name, uint64_t bytes) {
  File file(::memfd_create(name, MFD_CLOEXEC));
  if (file.fd() < 0 || ::ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0) {
    fail_with_errno("a memory file of " + std::to_string(bytes) + " bytes cannot be made");
  }
  return file;
}

AddressSpace::AddressSpace(uint64_t device_bytes, uint64_t pinned_bytes, const File& pinned,
                           uint32_t attempt)
    : device_bytes_(device_bytes), total_bytes_(device_bytes + pinned_bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* place = MAP_FAILED;
  for (uint32_t i = attempt; i < kBases && place == MAP_FAILED; ++i) {
    place = ::mmap(reinterpret_cast<void*>(kFirstBase + i * kBaseStep), total_bytes_, PROT_NONE,
                   kFlags | MAP_FIXED_NOREPLACE, -1, 0);
  }
  if (place == MAP_FAILED) place = ::mmap(nullptr, total_bytes_, PROT_NONE, kFlags, -1, 0);
  if (place == MAP_FAILED) fail_with_errno("no address range for the imitation's memory");
  base_ = reinterpret_cast<uint64_t>(place);
  if (::mmap(reinterpret_cast<void*>(this->pinned()), pinned_bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_NORESERVE, pinned.fd(), 0) == MAP_FAILED) {
    const int reason = errno;
    ::munmap(place, total_bytes_);
    errno = reason;
    fail_with_errno("pinned memory cannot be mapped");
  }
}

AddressSpace::~AddressSpace() { ::munmap(reinterpret_cast<void*>(base_), total_bytes_); }

std::optional<uint64_t> Arena::take(uint64_t bytes) {
  if (bytes > capacity_) return std::nullopt;
  const uint64_t size = (bytes + kGrain - 1) / kGrain * kGrain;
  uint64_t begin = kShift;
  for (const auto& [used_begin, used_end] : taken_) {
    if (used_begin - begin >= size) break;
    begin = used_end;
  }
  if (begin + size > capacity_) return std::nullopt;
  taken_.emplace(begin, begin + size);
  taken_bytes_ += size;
  return begin;
}

void Arena::give_back(uint64_t offset) {
  const auto found = taken_.find(offset);
  if (found == taken_.end()) return;
  taken_bytes_ -= found->second - found->first;
  taken_.erase(found);
}

}  // namespace atlas::imitation
