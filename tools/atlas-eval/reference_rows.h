// Logits that others are compared with, bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::eval {

struct RowDifference {
  size_t sequence = 0;
  uint32_t position = 0, token = 0;  // `token`: whose logit it is
  uint32_t reference_bits = 0, bits = 0;
};

/// Rows of `vocab` logits of several sequences. Rows of a sequence are kept in order.
class ReferenceRows {
 public:
  ReferenceRows() = default;
  ReferenceRows(size_t sequences, uint32_t vocab) : vocab_(vocab), kept_(sequences) {}

  /// Keeps [rows, vocab] from position `first` on. kDataLoss names a logit that is not finite.
  Status keep(size_t sequence, uint32_t first, std::span<const float> logits);

  /// Compares [rows, vocab] from position `first` on with what was kept, and counts.
  void compare(size_t sequence, uint32_t first, std::span<const float> logits);

  uint64_t rows() const { return rows_; }
  uint64_t logits() const { return rows_ * vocab_; }
  uint64_t rows_different() const { return rows_different_; }
  const std::optional<RowDifference>& first_difference() const { return first_difference_; }

 private:
  uint32_t vocab_ = 0;
  std::vector<std::vector<float>> kept_;
  uint64_t rows_ = 0, rows_different_ = 0;
  std::optional<RowDifference> first_difference_;
};

}  // namespace atlas::eval
