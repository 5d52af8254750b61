// The host's side of the imitation's memory: files, address ranges, and who has which part of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace atlas::imitation {

/// A file descriptor that closes itself.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  File& operator=(File&& other) noexcept;
  ~File();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

/// A memory file of `bytes`, all zero, that takes memory only where it is written.
File make_memory_file(const char* name, uint64_t bytes);

/// Address ranges for device memory (which the host may not touch: PROT_NONE) and, behind it,
/// pinned memory. `attempt` chooses another place.
class AddressSpace {
 public:
  AddressSpace(uint64_t device_bytes, uint64_t pinned_bytes, const File& pinned, uint32_t attempt);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;
  uint64_t device() const { return base_; }
  uint64_t pinned() const { return base_ + device_bytes_; }

 private:
  uint64_t base_ = 0;
  uint64_t device_bytes_;
  uint64_t total_bytes_;
};

/// First-fit places in [0, capacity). Every place begins at an odd multiple of 256: what relies on
/// more alignment than the contract's 256 bytes finds out here. Not thread safe.
class Arena {
 public:
  explicit Arena(uint64_t capacity) : capacity_(capacity) {}
  std::optional<uint64_t> take(uint64_t bytes);
  void give_back(uint64_t offset);
  uint64_t taken_bytes() const { return taken_bytes_; }
  uint64_t capacity() const { return capacity_; }

 private:
  uint64_t capacity_;
  uint64_t taken_bytes_ = 0;
  std::map<uint64_t, uint64_t> taken_;  // begin of a place to its end
};

}  // namespace atlas::imitation
