// Input files: what opens, what is cut short, and that dropped bytes really leave the page cache.
#include "daemon/base/input_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace atlas;

TEST_SUITE_BEGIN("base");

namespace {

/// A file of `bytes` bytes in the build folder, on disk; removed at the end.
class DiskFile {
 public:
  explicit DiskFile(size_t bytes) : path_(ATLAS_BINARY_DIR "/input_file_test_XXXXXX") {
    fd_ = ::mkstemp(path_.data());
    REQUIRE(fd_ >= 0);
    const std::string text(bytes, 'x');
    REQUIRE(::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(bytes));
    REQUIRE(::fsync(fd_) == 0);
  }
  ~DiskFile() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  /// In memory there is no cache to leave.
  bool in_memory() const {
    struct statfs info {};
    REQUIRE(::fstatfs(fd_, &info) == 0);
    return info.f_type == TMPFS_MAGIC;
  }
  /// For each page whether the cache holds it.
  std::vector<unsigned char> resident(size_t bytes) const {
    void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, 0);
    REQUIRE(data != MAP_FAILED);
    std::vector<unsigned char> pages((bytes + page() - 1) / page());
    REQUIRE(::mincore(data, bytes, pages.data()) == 0);
    ::munmap(data, bytes);
    for (unsigned char& flag : pages) flag &= 1;
    return pages;
  }
  static size_t page() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace

TEST_CASE("input file: what is absent, a folder or empty is told apart") {
  CHECK(InputFile::open(ATLAS_BINARY_DIR "/no such file").error().code() == Code::kNotFound);
  CHECK(InputFile::open(ATLAS_BINARY_DIR).error().code() == Code::kInvalidArgument);
  const DiskFile file(0);
  const auto input = InputFile::open(file.path());
  REQUIRE(input);
  CHECK(input->size() == 0);
  CHECK(input->read_text(0).value_or("?").empty());
  input->drop_cache(0, 100);
}

TEST_CASE("input file: bytes that were read and dropped leave the page cache, neighbours stay") {
  const size_t page = DiskFile::page();
  const size_t bytes = 64 * page;
  const DiskFile file(bytes);
  const auto input = InputFile::open(file.path());
  REQUIRE(input);
  const auto read_all = [&] {
    const auto text = input->read_text(bytes);
    REQUIRE(text);
    unsigned sum = 0;
    for (const char c : *text) sum += static_cast<unsigned>(c);
    return sum;
  };
  const unsigned sum = read_all();
  CHECK(sum == 'x' * bytes);
  if (file.in_memory()) {
    MESSAGE("the build folder is in memory: residence is not looked at");
    return;
  }
  REQUIRE(file.resident(bytes) == std::vector<unsigned char>(64, 1));
  // From inside page 1 to inside page 40. The kernel may keep more than the rest of these two (it
  // drops large folios whole or not at all), never less.
  input->drop_cache(page + 1, 39 * page);
  const auto after = file.resident(bytes);
  CHECK(std::count(after.begin(), after.begin() + 2, 1) == 2);
  CHECK(std::count(after.begin() + 40, after.end(), 1) == 24);
  CHECK(read_all() == sum);
  input->drop_cache(0, UINT64_MAX);
  CHECK(file.resident(bytes) == std::vector<unsigned char>(64, 0));
  input->drop_cache(UINT64_MAX, UINT64_MAX);
  CHECK(read_all() == sum);
}

TEST_CASE("input file: reading what was cut off since is an error with path, place and sizes") {
  const size_t page = DiskFile::page();
  const DiskFile file(8 * page);
  const auto input = InputFile::open(file.path());
  REQUIRE(input);
  std::vector<std::byte> out(2 * page);
  REQUIRE(input->read_at(6 * page, out).ok());
  CHECK(std::count(out.begin(), out.end(), std::byte{'x'}) == static_cast<int>(2 * page));
  CHECK(input->read_at(6 * page + 1, out).code() == Code::kOutOfRange);
  CHECK(input->read_at(UINT64_MAX, out).code() == Code::kOutOfRange);
  REQUIRE(::truncate(file.path().c_str(), static_cast<off_t>(7 * page)) == 0);
  CHECK(input->read_at(5 * page, out).ok());
  const Status cut = input->read_at(6 * page, out);
  CHECK(cut.code() == Code::kDataLoss);
  CHECK(input->read_text(8 * page).error().code() == Code::kDataLoss);
  CHECK(input->read_text(8 * page - 1).error().message() ==
        fmt::format("'{}' has {} bytes; the limit for such a file is {}", file.path(), 8 * page,
                    8 * page - 1));
  for (const std::string& part :
       {file.path(), fmt::format("offset {}", 7 * page), fmt::format("had {}", 8 * page),
        fmt::format("has {}", 7 * page)}) {
    CHECK_MESSAGE(cut.message().find(part) != std::string::npos, cut.message());
  }
}

TEST_SUITE_END();
