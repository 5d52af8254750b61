// The model that is quantized: its tensors as float32, whatever they are stored as.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/checkpoint.h"
#include "tools/atlas-quantize/tensors.h"

namespace atlas::quantize {

/// A checkpoint whose weights can be read one by one. Calls are thread safe.
class Source {
 public:
  /// Errors: those of Checkpoint::open; kUnimplemented for a checkpoint that is quantized already
  /// in a format that is no GGUF block format (its name, and what to take instead).
  static Result<Source> open(const std::string& path);

  const model::Checkpoint& checkpoint() const { return *checkpoint_; }
  bool is_gguf() const { return gguf_; }
  /// Size and name of every file, so that a job is not continued on another model.
  const std::string& fingerprint() const { return fingerprint_; }

  /// A tensor of any rank as a matrix: the last dimension is the columns. Rows of Q and K of a GGUF
  /// are put into Hugging Face's order. Errors: kDataLoss if the file cannot be read or holds a
  /// value that is not finite; kUnimplemented for a type without float values.
  Result<Matrix> read(const model::TensorInfo& tensor) const;
  /// The bytes as they lie.
  Result<std::vector<std::byte>> bytes(const model::TensorInfo& tensor) const;

 private:
  Source() = default;
  std::shared_ptr<const model::Checkpoint> checkpoint_;
  bool gguf_ = false;
  std::string fingerprint_;
};

/// Rows of a rotated projection from GGUF's order (elements 2i and 2i+1 of a head turn together) to
/// Hugging Face's (i and i + d/2 do). `heads` divides the rows, and 2 a head's.
Matrix unpermute_heads(const Matrix& rows, uint64_t heads);

}  // namespace atlas::quantize
