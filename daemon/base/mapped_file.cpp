// mmap(2) and pread(2) behind MappedFile.
#include "daemon/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace atlas {

Result<MappedFile> MappedFile::open(const std::string& path) {
  MappedFile file;
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
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ == 0) return file;
  void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, file.fd_, 0);
  if (data == MAP_FAILED) {
    file.size_ = 0;
    return resource_exhausted("cannot map '{}': {}", path, std::strerror(errno));
  }
  file.data_ = static_cast<const std::byte*>(data);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

Status MappedFile::read_at(uint64_t offset, std::span<std::byte> out) const {
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

void MappedFile::drop_cache(uint64_t offset, uint64_t bytes) const {
  if (fd_ < 0 || bytes == 0 || offset >= size_) return;
  // Pages that are mapped stay in the cache, so the whole ones inside the range are let go first.
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = (offset + page - 1) / page * page;
  const uint64_t end = (offset + std::min<uint64_t>(bytes, size_ - offset)) / page * page;
  if (begin < end) {
    (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
    (void)::posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                          POSIX_FADV_DONTNEED);
  }
}

void MappedFile::swap(MappedFile& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
}

}  // namespace atlas
