// Writes safetensors files: tensors that are made one by one, so that a file may be larger than
// memory, and the index of several files.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "tools/atlas-quantize/tensors.h"

namespace atlas::quantize {

/// A tensor whose bytes are made when its turn comes.
struct PlannedTensor {
  std::string name;
  AtlasDType dtype = ATLAS_F32;
  std::vector<uint64_t> dims;
  std::function<Result<std::vector<std::byte>>()> bytes;
};

/// Elements of wider types come first, then by name, so that every tensor is aligned to its
/// elements. The file appears under its name only when it is whole: it is written beside it and
/// renamed. Errors: kInvalidArgument if it cannot be written; what a tensor's `bytes` returns.
Status write_safetensors(const std::string& path, std::vector<PlannedTensor> tensors,
                         const std::map<std::string, std::string>& metadata);

/// Tensors that are made already.
std::vector<PlannedTensor> planned(std::vector<EncodedTensor> tensors);

/// A text file that appears under its name only when it is whole.
Status write_text_file(const std::string& path, const std::string& text);

/// The names of a file's tensors. Errors: those of the checkpoint reader.
Result<std::vector<std::string>> tensor_names(const std::string& path);

/// model.safetensors.index.json: for each tensor its file.
std::string safetensors_index(const std::map<std::string, std::string>& files,
                              uint64_t total_bytes);

}  // namespace atlas::quantize
