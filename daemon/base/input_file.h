// A file that is read by copies: the bytes of checkpoints. A mapping could not say that its file
// was cut short; a look at what is gone would end the process (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/base/status.h"

namespace atlas {

/// An open regular file with the size that it had when it was opened; movable. Calls are thread
/// safe.
class InputFile {
 public:
  /// Errors: kNotFound or kPermissionDenied with the path; kInvalidArgument for what is not a
  /// regular file.
  static Result<InputFile> open(const std::string& path);
  InputFile() = default;
  InputFile(InputFile&& other) noexcept { swap(other); }
  InputFile& operator=(InputFile&& other) noexcept {
    swap(other);
    return *this;
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// Copies [offset, offset + out.size()) into `out` by pread(2).
  /// Errors: kOutOfRange for a range outside of `size()`; kDataLoss with path, range and sizes if
  /// the file has become shorter since it was opened or the medium fails.
  Status read_at(uint64_t offset, std::span<std::byte> out) const;
  /// The whole file. Errors: kInvalidArgument beyond `most` bytes; as `read_at`.
  Result<std::string> read_text(uint64_t most) const;
  /// Tells the kernel that [offset, offset+bytes) is not needed again, so that loading weights
  /// leaves no second copy in the page cache.
  void drop_cache(uint64_t offset, uint64_t bytes) const;

 private:
  void swap(InputFile& other) noexcept;
  uint64_t size_ = 0;
  int fd_ = -1;
  std::string path_;
};

}  // namespace atlas
