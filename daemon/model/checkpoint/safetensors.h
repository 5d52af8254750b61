// Reads the header of one safetensors file and the index of a sharded one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/input_file.h"
#include "daemon/base/status.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {

/// The largest header that is read. The format's reference stops at 100 MB; checkpoints with more
/// than a million tensors exist.
inline constexpr uint64_t kMaxSafetensorsHeader = 512ull << 20;

/// What one file contributed, for the load log.
struct SafetensorsSummary {
  uint64_t tensors = 0;
  uint64_t misaligned = 0;  ///< tensors whose offset in the file their element size does not divide
};

/// Adds the tensors of `file` (file `number` of the checkpoint) to `table`. Only the header is
/// read. Every field is checked: lengths against the file, types, shapes against spans, and that
/// the spans cover the data without overlap or hole. Errors: kInvalidArgument or kUnimplemented (a
/// type that Atlas does not read); kDataLoss if the file was cut short since it was opened.
Result<SafetensorsSummary> read_safetensors(const InputFile& file, uint32_t number,
                                            TensorTable* table);
/// The same of a file whose bytes are in memory. `path` is for messages.
Result<SafetensorsSummary> read_safetensors(std::span<const std::byte> bytes,
                                            const std::string& path, uint32_t number,
                                            TensorTable* table);

/// The index of a sharded checkpoint: shard names in order of appearance, and for each tensor its
/// shard's number.
struct SafetensorsIndex {
  std::vector<std::string> shards;
  std::vector<std::pair<std::string_view, uint32_t>> tensors;
  TensorTable names;  ///< storage of the views above
};

/// Parses model.safetensors.index.json. Errors: kInvalidArgument for broken JSON, a tensor listed
/// twice, or a shard name that is not a plain relative path inside the folder.
Result<SafetensorsIndex> read_safetensors_index(std::string_view json, const std::string& path);

}  // namespace atlas::model
