// pread(2) behind InputFile.
#include "daemon/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace atlas {

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file.fd_ < 0) {
    const Code code = errno == EACCES ? Code::kPermissionDenied : Code::kNotFound;
    return Status(code, fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    return invalid_argument("'{}' is not a regular file", path);
  }
  file.size_ = static_cast<uint64_t>(info.st_size);
  return file;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status InputFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    return out_of_range("'{}': {} bytes at offset {} are asked for, and the file has {}", path_,
                        out.size(), offset, size_);
  }
  for (size_t done = 0; done < out.size();) {
    const ssize_t count =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return data_loss("cannot read {} bytes at offset {} of '{}': {}", out.size() - done,
                       offset + done, path_, std::strerror(errno));
    }
    if (count == 0) {
      struct stat info {};
      (void)::fstat(fd_, &info);
      return data_loss(
          "'{}' was cut short while it was read: {} bytes at offset {} are missing; it had {} when "
          "it was opened and has {} now. Put the whole file in place by renaming, and load again",
          path_, out.size() - done, offset + done, size_, info.st_size);
    }
    done += static_cast<size_t>(count);
  }
  return {};
}

Result<std::string> InputFile::read_text(uint64_t most) const {
  if (size_ > most) {
    return invalid_argument("'{}' has {} bytes; the limit for such a file is {}", path_, size_,
                            most);
  }
  std::string text(size_, '\0');
  ATLAS_RETURN_IF_ERROR(read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

void InputFile::drop_cache(uint64_t offset, uint64_t bytes) const {
  if (fd_ < 0 || bytes == 0 || offset >= size_) return;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = (offset + page - 1) / page * page;
  const uint64_t end = (offset + std::min<uint64_t>(bytes, size_ - offset)) / page * page;
  if (begin < end) {
    (void)::posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                          POSIX_FADV_DONTNEED);
  }
}

void InputFile::swap(InputFile& other) noexcept {
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
}

}  // namespace atlas
