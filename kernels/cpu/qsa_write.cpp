// qsa_write: keys and values into their pages, and index keys of blocks from the raw keys of their
// positions (kernels/common/qsa.h).
#include "kernels/common/qsa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/qsa_write.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/angles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

/// Raw index keys of one sequence by position, from the step or from the ring.
struct RawKeys {
  const QsaWriteParams& p;
  const RowSpan& span;

  float* ring(uint32_t position) const {
    auto* slot = reinterpret_cast<float*>(p.slots + span.slot * p.slot_stride);
    return slot + uint64_t{position % qsa_ring_rows(p.ratio)} * p.index_dim;
  }
  const float* at(uint32_t position) const {
    if (position < span.index) return ring(position);
    return p.index_k + (uint64_t{span.first_row} + (position - span.index)) * p.index_k_stride;
  }
};

/// x = the mean of a block's raw keys, normed; padded with zeros to whole groups of 16.
void MeanKey(const RawKeys& keys, uint32_t first, float* x) {
  const QsaWriteParams& p = keys.p;
  const size_t n = p.index_dim;
  std::fill_n(x, (n + 15) / 16 * 16, 0.0f);
  std::copy_n(keys.at(first), n, x);
  for (uint32_t i = 1; i < p.ratio; ++i) {
    const float* more = keys.at(first + i);
    for (size_t d = 0; d < n; ++d) x[d] += more[d];
  }
  const F16 share = Set16(1.0f / static_cast<float>(p.ratio));
  F16 squares = Set16(0.0f);
  for (size_t d = 0; d < n; d += 16) {
    const F16 mean = Mul(Load16(x + d), share);
    Store16(mean, x + d);
    squares = MulAdd(mean, mean, squares);
  }
  const float scale = 1.0f / std::sqrt(SumPairwise(squares) / static_cast<float>(n) + p.epsilon);
  for (size_t d = 0; d < n; ++d) x[d] = (x[d] * scale) * p.k_norm[d];
}

/// Makes the key of the block whose first position is `first`, and puts it into its page.
void PoolBlock(const RawKeys& keys, uint32_t first) {
  const QsaWriteParams& p = keys.p;
  const ControlLimits& limits = p.control->limits;
  const uint32_t page = first / kGqaPageTokens;
  // control_fetch lets no row pass that has no page.
  if (page >= limits.max_pages) return;
  float x[kQsaMaxIndexDim], cosine[kPairs], sine[kPairs];
  MeanKey(keys, first, x);
  const size_t half = p.rotary_dim / 2;
  for (size_t i = 0; i < half; i += kPairs) {
    const size_t count = std::min(kPairs, half - i);
    Angles(p.inverse_frequency + i, count, static_cast<float>(first), p.magnitude, cosine, sine);
    RotateHalves(x + i, half, count, cosine, sine);
  }
  const uint64_t number =
      p.control->block_table[uint64_t{keys.span.slot} * limits.max_pages + page];
  float* to = reinterpret_cast<float*>(p.pages + number * p.page_stride) +
              qsa_pooled_offset(p.kv_heads, p.head_dim) + first % kGqaPageTokens / p.ratio;
  for (size_t d = 0; d < p.index_dim; ++d) to[d * qsa_pooled_stride(p.ratio)] = x[d];
}

/// Writes a row's keys and values.
void WriteRow(const QsaWriteParams& p, uint32_t slot, uint64_t row, uint32_t position) {
  const ControlLimits& limits = p.control->limits;
  const uint32_t page = position / kGqaPageTokens;
  if (page >= limits.max_pages) return;
  const uint64_t number = p.control->block_table[uint64_t{slot} * limits.max_pages + page];
  auto* head = reinterpret_cast<float*>(p.pages + number * p.page_stride);
  const size_t value_stride = gqa_value_stride(p.head_dim), place = position % kGqaPageTokens;
  for (uint32_t h = 0; h < p.kv_heads; ++h, head += gqa_head_floats(p.head_dim)) {
    const float* k = p.k + row * p.k_stride + uint64_t{h} * p.head_dim;
    float* key = head + place / kQsaKeyRun * p.head_dim * kQsaKeyRun + place % kQsaKeyRun;
    for (size_t d = 0; d < p.head_dim; ++d) key[d * kQsaKeyRun] = k[d];
    float* value = head + size_t{p.head_dim} * kGqaPageTokens + place * value_stride;
    std::copy_n(p.v + row * p.v_stride + uint64_t{h} * p.head_dim, p.head_dim, value);
    std::fill(value + p.head_dim, value + value_stride, 0.0f);
  }
}

/// Rows [begin, end) of the set: their keys and values, and the blocks that they complete. The task
/// with a span's first row is the one that reads its ring, and then writes it.
void PutRows(const QsaWriteParams& p, uint64_t begin, uint64_t end) {
  for (uint32_t s = 0; s < p.rows->span_count; ++s) {
    const RowSpan& span = p.rows->spans[s];
    const uint64_t span_end = uint64_t{span.first_row} + span.row_count;
    if (span_end <= begin || span.first_row >= end) continue;
    const RawKeys keys{p, span};
    const uint32_t last = span.index + span.row_count - 1;
    if (span.first_row >= begin) {
      const uint32_t block = span.index / p.ratio * p.ratio;
      if (block < span.index && block + p.ratio - 1 <= last) PoolBlock(keys, block);
      for (uint32_t i = std::min(span.row_count, qsa_ring_rows(p.ratio)); i-- > 0;) {
        std::copy_n(keys.at(last - i), p.index_dim, keys.ring(last - i));
      }
    }
    const uint64_t stop = std::min(end, span_end);
    for (uint64_t row = std::max<uint64_t>(begin, span.first_row); row < stop; ++row) {
      const uint32_t place = static_cast<uint32_t>(row - span.first_row);
      const uint32_t position = span.index + place;
      WriteRow(p, span.slot, row, position);
      if (row < p.split_rows) std::fill_n(p.arrivals + row * p.kv_heads, p.kv_heads, 0u);
      if ((position + 1) % p.ratio == 0 && place + 1 >= p.ratio) {
        PoolBlock(keys, position + 1 - p.ratio);
      }
    }
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(PutRows);
ATLAS_CPU_KERNEL(qsa_write, QsaWriteParams) {
  HWY_DYNAMIC_DISPATCH(PutRows)
  (params, uint64_t{begin} * kQsaWriteRows, uint64_t{end} * kQsaWriteRows);
}

}  // namespace atlas::kernels::cpu
#endif
