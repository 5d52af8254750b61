#include "daemon/exec/row_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "kernels/common/codecs.h"
#include "kernels/common/exl3.h"

namespace atlas::exec {

namespace {

/// What O_DIRECT wants offsets, sizes and memory to be multiples of, on every disk in use.
constexpr uint64_t kBlock = 4096;
/// Reads that wait for the disk at once.
constexpr size_t kReaders = 8;
/// Fewer reads than this are not worth waking other threads.
constexpr size_t kFewReads = 3;

uint64_t element_bytes(AtlasDType dtype) {
  switch (dtype) {
    case ATLAS_F32:
      return 4;
    case ATLAS_F16:
    case ATLAS_BF16:
      return 2;
    case ATLAS_F8_E4M3:
      return 1;
    default:
      return 0;
  }
}

uint64_t row_bytes_of(const RowTableFiles& files) {
  return files.trellis_bits != 0 ? kernels::exl3_row_bytes(files.trellis_bits)
                                 : files.row_width * element_bytes(files.dtype);
}

/// What a trellis needs besides its rows.
Status check_trellis(const RowTableFiles& files) {
  const std::vector<uint64_t>& heads = files.head_offsets;
  if (files.trellis_bits > 8 || files.row_width != kernels::kExl3RowElements) {
    return unimplemented("a trellis table of {} bits with rows of {} elements: 1 to 8 and {}",
                         files.trellis_bits, files.row_width, kernels::kExl3RowElements);
  }
  if (heads.empty() || heads.front() != 0 || !std::is_sorted(heads.begin(), heads.end()) ||
      files.head_bias.size() != heads.size() * files.row_width) {
    return invalid_argument("a trellis table of {} heads with {} elements of head bias",
                            heads.size(), files.head_bias.size());
  }
  return {};
}

/// An open file; `direct` if its reads go past the page cache.
class RowFile {
 public:
  static Result<RowFile> open(const std::string& path) {
    RowFile file;
    file.path_ = path;
    file.direct_ = true;
    file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (file.fd_ < 0) {
      file.direct_ = false;
      file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    }
    if (file.fd_ < 0) {
      return not_found("cannot open '{}' for its rows: {}", path, std::strerror(errno));
    }
    if (!file.direct_) ::posix_fadvise(file.fd_, 0, 0, POSIX_FADV_RANDOM);
    return file;
  }
  RowFile(RowFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), direct_(other.direct_) {}
  RowFile& operator=(RowFile&&) = delete;
  ~RowFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  /// `buffer` has room for the row's bytes and two blocks, aligned to a block.
  Status read(uint64_t offset, std::span<std::byte> row, std::byte* buffer) const {
    const uint64_t begin = direct_ ? offset / kBlock * kBlock : offset;
    const uint64_t end = offset + row.size();
    const uint64_t wanted = direct_ ? (end - begin + kBlock - 1) / kBlock * kBlock : end - begin;
    uint64_t got = 0;
    while (begin + got < end) {
      const ssize_t n = ::pread(fd_, buffer + got, wanted - got, static_cast<off_t>(begin + got));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        return data_loss("reading {} bytes at {} of '{}' failed: {}", row.size(), offset, path_,
                         std::strerror(errno));
      }
      got += static_cast<uint64_t>(n);
      // A direct read gives a part of a block only where the file ends.
      const bool ended = n == 0 || (direct_ && got % kBlock != 0);
      if (ended && begin + got < end) {
        return data_loss("'{}' ends at byte {}, and a row lies at {}: the file was cut short",
                         path_, begin + got, offset);
      }
    }
    std::memcpy(row.data(), buffer + (offset - begin), row.size());
    if (!direct_)
      ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(row.size()),
                      POSIX_FADV_DONTNEED);
    return {};
  }

 private:
  RowFile() = default;
  std::string path_;
  int fd_ = -1;
  bool direct_ = false;
};

void decode(AtlasDType dtype, float scale, std::span<const std::byte> raw, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(raw.data());
  const size_t n = raw.size() / element_bytes(dtype);
  for (size_t i = 0; i < n; ++i) {
    switch (dtype) {
      case ATLAS_F32:
        std::memcpy(out + i, bytes + 4 * i, sizeof(float));
        break;
      case ATLAS_F16:
        out[i] = kernels::load_f16(bytes + 2 * i);
        break;
      case ATLAS_BF16:
        out[i] = kernels::bf16_to_f32(kernels::load_u16(bytes + 2 * i));
        break;
      default:
        out[i] = kernels::e4m3_to_f32(bytes[i]) * scale;
    }
  }
}

}  // namespace

/// Raw rows in memory, the one that was not asked for the longest replaced first (a second-chance
/// clock: a row that was asked for since the hand passed is passed once more).
class RowCache {
 public:
  RowCache(uint64_t rows, uint64_t row_bytes)
      : row_bytes_(row_bytes), keys_(rows), used_(rows), bytes_(rows * row_bytes) {}

  const std::byte* find(uint64_t key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    used_[found->second] = true;
    return bytes_.data() + found->second * row_bytes_;
  }
  /// Keeps a row that is not there yet.
  void keep(uint64_t key, const std::byte* row) {
    uint64_t place = filled_;
    if (filled_ < keys_.size()) {
      ++filled_;
    } else {
      while (used_[hand_]) {
        used_[hand_] = false;
        hand_ = (hand_ + 1) % keys_.size();
      }
      place = hand_;
      hand_ = (hand_ + 1) % keys_.size();
      places_.erase(keys_[place]);
    }
    keys_[place] = key;
    places_[key] = place;
    std::memcpy(bytes_.data() + place * row_bytes_, row, row_bytes_);
  }

 private:
  uint64_t row_bytes_;
  std::vector<uint64_t> keys_;
  std::vector<bool> used_;
  std::vector<std::byte> bytes_;
  std::unordered_map<uint64_t, uint64_t> places_;
  uint64_t filled_ = 0, hand_ = 0;
};

class RowTable::Impl {
 public:
  Impl(RowTableFiles files, std::vector<RowFile> opened, uint64_t cache_rows)
      : files_(std::move(files)),
        opened_(std::move(opened)),
        row_bytes_(row_bytes_of(files_)),
        cache_(cache_rows, row_bytes_) {
    for (size_t i = 0; i < kReaders; ++i) {
      readers_.emplace_back([this](const std::stop_token& stop) { reader(stop); });
    }
  }

  Status read(std::span<const uint64_t> keys, float* out) {
    std::vector<uint64_t> missing;
    for (const uint64_t key : keys) {
      if (key >= files_.rows) {
        return invalid_argument("row {} of an n-gram table of {} rows", key, files_.rows);
      }
      if (cache_.find(key) == nullptr) missing.push_back(key);
    }
    hits_ += keys.size() - missing.size();
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    reads_ += missing.size();
    raw_.resize(missing.size() * row_bytes_);
    ATLAS_RETURN_IF_ERROR(read_rows(missing));
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::byte* row = cache_.find(keys[i]);
      if (row == nullptr) {
        const auto at = std::lower_bound(missing.begin(), missing.end(), keys[i]);
        row = raw_.data() + static_cast<size_t>(at - missing.begin()) * row_bytes_;
      }
      decode_row(keys[i], row, out + i * files_.row_width);
    }
    for (size_t i = 0; i < missing.size(); ++i) cache_.keep(missing[i], &raw_[i * row_bytes_]);
    return {};
  }

  uint32_t width() const { return files_.row_width; }
  RowTableCounters counters() const { return {hits_.load(), reads_.load()}; }

 private:
  void decode_row(uint64_t key, const std::byte* row, float* out) const {
    if (files_.trellis_bits == 0) {
      decode(files_.dtype, files_.scale, {row, row_bytes_}, out);
      return;
    }
    kernels::exl3_decode_row(reinterpret_cast<const uint8_t*>(row), files_.trellis_bits, out);
    const auto& heads = files_.head_offsets;
    const auto head = std::upper_bound(heads.begin(), heads.end(), key) - heads.begin() - 1;
    const float* bias = &files_.head_bias[static_cast<size_t>(head) * files_.row_width];
    for (uint32_t i = 0; i < files_.row_width; ++i) out[i] += bias[i];
  }

  /// Reads the rows into raw_, several at a time.
  Status read_rows(const std::vector<uint64_t>& keys) {
    if (keys.empty()) return {};
    {
      const std::scoped_lock lock(mutex_);
      keys_ = &keys;
      next_ = 0;
      failed_ = Status();
      working_ = 0;
    }
    if (keys.size() > kFewReads) wake_.notify_all();
    work();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return working_ == 0; });
    keys_ = nullptr;
    return failed_;
  }

  void reader(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (wake_.wait(lock, stop, [this] { return keys_ != nullptr && next_ < keys_->size(); })) {
      lock.unlock();
      work();
      lock.lock();
    }
  }

  /// Takes rows of the batch one after the other until there are none.
  void work() {
    thread_local std::unique_ptr<std::byte[], void (*)(std::byte*)> buffer(
        nullptr, [](std::byte* memory) { std::free(memory); });
    thread_local uint64_t capacity = 0;
    const uint64_t bytes = (row_bytes_ + 3 * kBlock - 1) / kBlock * kBlock;
    if (capacity < bytes) {
      buffer.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, bytes)));
      capacity = buffer == nullptr ? 0 : bytes;
    }
    std::unique_lock lock(mutex_);
    if (keys_ == nullptr) return;
    ++working_;
    while (next_ < keys_->size() && failed_.ok()) {
      const size_t i = next_++;
      const uint64_t key = (*keys_)[i];
      lock.unlock();
      const uint64_t shard = key / files_.shard_rows;
      const uint64_t offset = files_.shards[shard].offset + key % files_.shard_rows * row_bytes_;
      Status status =
          buffer == nullptr
              ? resource_exhausted("there is no memory to read rows of a table")
              : opened_[shard].read(offset, {&raw_[i * row_bytes_], row_bytes_}, buffer.get());
      lock.lock();
      if (!status.ok() && failed_.ok()) failed_ = std::move(status);
    }
    if (--working_ == 0) done_.notify_all();
  }

  const RowTableFiles files_;
  const std::vector<RowFile> opened_;
  const uint64_t row_bytes_;
  RowCache cache_;
  std::vector<std::byte> raw_;
  std::atomic<uint64_t> hits_{0}, reads_{0};

  std::mutex mutex_;  // guards the batch below
  std::condition_variable_any wake_, done_;
  const std::vector<uint64_t>* keys_ = nullptr;
  size_t next_ = 0, working_ = 0;
  Status failed_;
  std::vector<std::jthread> readers_;  // last: they stop first
};

RowTable::RowTable(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RowTable::~RowTable() = default;
uint32_t RowTable::width() const { return impl_->width(); }
Status RowTable::read(std::span<const uint64_t> keys, float* out) { return impl_->read(keys, out); }
RowTableCounters RowTable::counters() const { return impl_->counters(); }

Result<std::unique_ptr<RowTable>> RowTable::open(RowTableFiles files, uint64_t cache_bytes) {
  if (files.trellis_bits != 0) ATLAS_RETURN_IF_ERROR(check_trellis(files));
  const uint64_t row_bytes = row_bytes_of(files);
  uint64_t rows = 0;
  for (const RowTableFiles::Shard& shard : files.shards) rows += shard.rows;
  if (row_bytes == 0 || files.shard_rows == 0 || rows != files.rows ||
      (files.rows + files.shard_rows - 1) / files.shard_rows != files.shards.size()) {
    return invalid_argument("a table of {} rows of {} bytes in {} files", files.rows, row_bytes,
                            files.shards.size());
  }
  std::vector<RowFile> opened;
  for (const RowTableFiles::Shard& shard : files.shards) {
    ATLAS_ASSIGN_OR_RETURN(RowFile file, RowFile::open(shard.path));
    opened.push_back(std::move(file));
  }
  const uint64_t cached = std::clamp<uint64_t>(cache_bytes / row_bytes, 1, files.rows);
  return std::unique_ptr<RowTable>(
      new RowTable(std::make_unique<Impl>(std::move(files), std::move(opened), cached)));
}

}  // namespace atlas::exec
