// mkdtemp, flock and rename behind private_copy.
#include "daemon/plugin_host/private_copy.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

namespace atlas::plugin_host {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "atlas-plugins-";

// A lock on an open folder says that its process lives; the kernel drops it however that ends.
// Returns the open folder, or -1 if another process holds the lock or the folder is gone.
int lock_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return -1;
  struct stat opened {};
  struct stat named {};
  // Between open and lock a sweep may have removed the folder: then the path names another or none.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 || ::fstat(fd, &opened) != 0 ||
      ::lstat(path.c_str(), &named) != 0 || opened.st_ino != named.st_ino) {
    ::close(fd);
    return -1;
  }
  return fd;
}

// Removes the folders of processes that ended without doing so themselves.
void sweep(const std::string& base) {
  std::error_code ignored;
  for (fs::directory_iterator at(base, ignored), end; at != end; at.increment(ignored)) {
    const std::string path = at->path().string();
    struct stat info {};
    if (!at->path().filename().string().starts_with(kFolderPrefix)) continue;
    if (::lstat(path.c_str(), &info) != 0 || info.st_uid != ::geteuid()) continue;
    const int fd = lock_folder(path);
    if (fd < 0) continue;
    fs::remove_all(path, ignored);
    ::close(fd);
  }
}

// Makes this process's folder in one base; `lock` stays open as long as the folder is used.
Result<std::string> make_folder(const std::string& base, int& lock) {
  struct statvfs info {};
  if (::statvfs(base.c_str(), &info) != 0) {
    return failed_precondition("'{}': {}", base, std::strerror(errno));
  }
  if ((info.f_flag & ST_NOEXEC) != 0) return failed_precondition("'{}': mounted noexec", base);
  sweep(base);
  for (int attempt = 0; attempt < 8; ++attempt) {
    std::string path = fmt::format("{}/{}XXXXXX", base, kFolderPrefix);
    if (::mkdtemp(path.data()) == nullptr) {
      return failed_precondition("'{}': {}", base, std::strerror(errno));
    }
    lock = lock_folder(path);
    if (lock >= 0) return path;
  }
  return failed_precondition("'{}': cannot lock a folder in it", base);
}

// All folders of the process; its destructor, at exit, removes them.
class Folders {
 public:
  ~Folders() {
    if (owner_ != ::getpid()) return;  // a forked child: the parent still uses them
    std::error_code ignored;
    for (const auto& [base, folder] : folders_) fs::remove_all(folder, ignored);
  }

  Result<std::string> get(const std::string& base) {
    const std::lock_guard guard(mutex_);
    std::vector<std::string> bases;
    if (!base.empty()) {
      bases.push_back(base);
    } else {
      const char* runtime = std::getenv("XDG_RUNTIME_DIR");
      if (runtime != nullptr && runtime[0] == '/') bases.emplace_back(runtime);
      bases.emplace_back("/tmp");
    }
    std::string reasons;
    for (const std::string& candidate : bases) {
      Result<std::string> folder = get_in(candidate);
      if (folder) return folder;
      reasons += (reasons.empty() ? "" : "; ") + folder.error().message();
    }
    return failed_precondition(
        "no folder for private copies of plugins ({}); name one that is writable and not mounted "
        "noexec",
        reasons);
  }

 private:
  Result<std::string> get_in(const std::string& base) {
    if (owner_ != ::getpid()) folders_.clear();
    owner_ = ::getpid();
    const auto known = folders_.find(base);
    if (known != folders_.end() && fs::is_directory(known->second)) return known->second;
    int lock = -1;  // never closed: it says that the process lives, also to systemd-tmpfiles
    ATLAS_ASSIGN_OR_RETURN(std::string folder, make_folder(fs::absolute(base).string(), lock));
    folders_[base] = folder;
    return folder;
  }

  std::mutex mutex_;
  std::map<std::string, std::string> folders_;
  pid_t owner_ = ::getpid();
};

Folders& folders() {
  static Folders all;
  return all;
}

Status write_file(const std::string& path, const std::vector<std::byte>& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0500);
  if (fd < 0) return resource_exhausted("cannot create '{}': {}", path, std::strerror(errno));
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t put = ::write(fd, bytes.data() + written, bytes.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int error = errno;
      ::close(fd);
      ::unlink(path.c_str());
      return resource_exhausted("cannot write '{}': {}", path, std::strerror(error));
    }
    written += static_cast<size_t>(put);
  }
  ::close(fd);
  return Status();
}

// Copies of one process never share a temporary name.
std::string temporary_name(const std::string& path) {
  static std::mutex mutex;
  static uint64_t count = 0;
  const std::lock_guard guard(mutex);
  return fmt::format("{}.{}", path, ++count);
}

}  // namespace

Result<std::string> private_copy(const FileImage& image, const std::string& base) {
  ATLAS_ASSIGN_OR_RETURN(const std::string folder, folders().get(base));
  const std::string path =
      fmt::format("{}/{}-{}.so", folder, fs::path(image.path).stem().string(), image.digest);
  // Written elsewhere and renamed, so that a copy under its name is always whole.
  if (::access(path.c_str(), F_OK) == 0) return path;
  const std::string temporary = temporary_name(path);
  ATLAS_RETURN_IF_ERROR(write_file(temporary, image.bytes));
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return resource_exhausted("cannot name '{}': {}", path, std::strerror(error));
  }
  return path;
}

}  // namespace atlas::plugin_host
