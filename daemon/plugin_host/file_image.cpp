// open, fstat, read, XXH64.
#include "daemon/plugin_host/file_image.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

namespace atlas::plugin_host {
namespace {

// Far above any plugin; keeps a wrong path from filling the memory.
constexpr uint64_t kMaxBytes = 1ull << 30;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Status errno_status(const std::string& path, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound
                    : error == EACCES || error == EPERM ? Code::kPermissionDenied
                                                        : Code::kInvalidArgument;
  return Status(code, fmt::format("cannot read '{}': {}", path, std::strerror(error)));
}

}  // namespace

std::string content_digest(const std::vector<std::byte>& bytes) {
  return fmt::format("{:016x}", XXH64(bytes.data(), bytes.size(), 0));
}

Result<FileImage> read_image(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return errno_status(path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return errno_status(path, errno);
  if (S_ISDIR(info.st_mode)) return invalid_argument("cannot read '{}': it is a folder", path);
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument("cannot read '{}': it is not a regular file", path);
  }
  FileImage image{path, {}, {}};
  // One byte more than the size says, so that the loop sees the end without growing.
  image.bytes.resize(std::min<uint64_t>(static_cast<uint64_t>(info.st_size), kMaxBytes) + 1);
  size_t filled = 0;
  while (true) {
    if (filled > kMaxBytes) {
      return invalid_argument("cannot read '{}': it is over {} MiB", path, kMaxBytes >> 20);
    }
    if (filled == image.bytes.size()) image.bytes.resize(filled + (64u << 10));
    const ssize_t got =
        ::read(file.get(), image.bytes.data() + filled, image.bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(path, errno);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  image.bytes.resize(filled);
  image.digest = content_digest(image.bytes);
  return image;
}

}  // namespace atlas::plugin_host
