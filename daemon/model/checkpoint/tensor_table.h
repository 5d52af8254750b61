// The tensors of a checkpoint, sorted by name, and the storage of their names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::model {

/// One tensor of a checkpoint. `name` has a zero byte behind its end and none inside. `dims` are
/// outermost first (rows, then elements of a row) for every file format; `offset` counts bytes from
/// the start of file number `file`.
struct TensorInfo {
  static constexpr uint32_t kMaxRank = 6;
  std::string_view name;
  AtlasDType dtype = ATLAS_F32;
  uint32_t rank = 0;
  std::array<uint64_t, kMaxRank> dims{};
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  std::span<const uint64_t> shape() const { return {dims.data(), rank}; }
};

/// Collects tensors while files are read; after `seal` it is immutable and can be searched.
/// Names live as long as the table, also when it is moved.
class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(TensorTable&&) = default;
  TensorTable& operator=(TensorTable&&) = default;

  /// Copies `name` and a zero byte into the table's own storage.
  std::string_view intern(std::string_view name);
  void reserve(size_t count) { tensors_.reserve(count); }
  void add(const TensorInfo& tensor) { tensors_.push_back(tensor); }

  /// Sorts by name. Errors: kInvalidArgument naming a tensor that two entries define, and both
  /// files, whose paths are `files`.
  Status seal(std::span<const std::string> files);

  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  /// The tensors whose names begin with `module` and a dot.
  std::span<const TensorInfo> with_prefix(std::string_view module) const;

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t block_left_ = 0;
};

/// Text from a file made fit for a message: control characters and broken bytes escaped, long text
/// cut with "...".
std::string printable(std::string_view text);

}  // namespace atlas::model
