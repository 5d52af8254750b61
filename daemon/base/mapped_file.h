// A file mapped read-only: the bytes of checkpoints. What is large is copied out of the file
// instead, because a mapping cannot say that its file was cut short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/base/status.h"

namespace atlas {

/// Owns one read-only private mapping of a whole regular file; movable, unmapped at destruction.
class MappedFile {
 public:
  /// Errors: kNotFound or kPermissionDenied with the path; kInvalidArgument for what is not a
  /// regular file. An empty file maps to an empty span.
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// The mapping. A look at a byte that the file no longer has ends the process (SIGBUS): what may
  /// be cut short meanwhile is read by `read_at`.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Copies [offset, offset + out.size()) into `out` by pread(2).
  /// Errors: kOutOfRange for a range outside of `bytes()`; kDataLoss with path, range and sizes if
  /// the file has become shorter since it was opened or the medium fails.
  Status read_at(uint64_t offset, std::span<std::byte> out) const;
  const std::string& path() const { return path_; }
  /// Tells the kernel that [offset, offset+bytes) is not needed again, so that loading weights
  /// leaves no second copy in the page cache.
  void drop_cache(uint64_t offset, uint64_t bytes) const;

 private:
  void swap(MappedFile& other) noexcept;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
  std::string path_;
};

}  // namespace atlas
