#include "tools/atlas-eval/reference_rows.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace atlas::eval {

Status ReferenceRows::keep(size_t sequence, uint32_t first, std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) continue;
    return data_loss("sequence {}, position {}: the logit of token {} is {}", sequence,
                     first + i / vocab_, i % vocab_, logits[i]);
  }
  std::vector<float>& kept = kept_.at(sequence);
  ATLAS_CHECK(kept.size() == uint64_t{first} * vocab_, "rows are kept in order");
  kept.insert(kept.end(), logits.begin(), logits.end());
  return {};
}

void ReferenceRows::compare(size_t sequence, uint32_t first, std::span<const float> logits) {
  const std::vector<float>& kept = kept_.at(sequence);
  const uint64_t begin = uint64_t{first} * vocab_;
  ATLAS_CHECK(begin + logits.size() <= kept.size(), "rows are compared with rows that were kept");
  for (size_t row = 0; row < logits.size() / vocab_; ++row) {
    const float* expected = kept.data() + begin + row * vocab_;
    const float* got = logits.data() + row * vocab_;
    ++rows_;
    if (std::memcmp(expected, got, vocab_ * sizeof(float)) == 0) continue;
    ++rows_different_;
    if (first_difference_) continue;
    uint32_t token = 0;
    while (std::memcmp(expected + token, got + token, sizeof(float)) == 0) ++token;
    first_difference_ = RowDifference{sequence, first + static_cast<uint32_t>(row), token,
                                      std::bit_cast<uint32_t>(expected[token]),
                                      std::bit_cast<uint32_t>(got[token])};
  }
}

}  // namespace atlas::eval
