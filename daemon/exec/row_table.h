// RowTable: rows of a table that stays in its files, read one by one, with a cache of our own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::exec {

/// Where rows come from; called by one thread.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual uint32_t width() const = 0;  // float32 elements a row
  /// Row keys[i] to out[i * width()]. Errors: kDataLoss names file and row, kInvalidArgument a key
  /// beyond the table.
  virtual Status read(std::span<const uint64_t> keys, float* out) = 0;
};

struct RowTableFiles {
  struct Shard {
    std::string path;
    uint64_t offset = 0;  // of its first row
    uint64_t rows = 0;
  };
  std::vector<Shard> shards;
  uint64_t shard_rows = 0;  // of every shard but the last
  uint64_t rows = 0;
  uint32_t row_width = 0;         // elements
  AtlasDType dtype = ATLAS_BF16;  // f32, f16, bf16 or f8_e4m3
  float scale = 1;                // every element of f8_e4m3 is multiplied by it
  // Not 0: rows are EXL3 trellises of so many bits a weight (kernels/common/exl3.h), whatever
  // `dtype` says; `head_bias` [heads, row_width] is added, of the head that the row belongs to.
  uint32_t trellis_bits = 0;
  std::vector<uint64_t> head_offsets;  // first row of each head, ascending from 0
  std::vector<float> head_bias;
};

struct RowTableCounters {
  uint64_t hits = 0, reads = 0;
};

/// Reads past the page cache where the file system can (O_DIRECT), so that a table larger than
/// memory stays out of it; several rows at a time, because each read waits for the disk.
class RowTable final : public RowSource {
 public:
  /// Opens the files. `cache_bytes` bounds the cache of raw rows (at least one row is kept).
  static Result<std::unique_ptr<RowTable>> open(RowTableFiles files, uint64_t cache_bytes);
  ~RowTable() override;

  uint32_t width() const override;
  Status read(std::span<const uint64_t> keys, float* out) override;
  RowTableCounters counters() const;

 private:
  class Impl;
  explicit RowTable(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace atlas::exec
