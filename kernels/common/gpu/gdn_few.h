// Few rows of a chunk in gdn_attend: as a decoding step needs it. State and pending values come in
// one burst of asynchronous copies, then each lane has a column.
#pragma once

#include "kernels/common/gpu/gdn_block.h"

namespace atlas::kernels {

/// What a block does with few rows of a chunk.
struct DeltaFew : DeltaBlock {
  using DeltaBlock::DeltaBlock;

  ATLAS_DEVICE void few_rows() {
    using namespace device;
    const uint32_t rows = chunk_.end - chunk_.first;
    // What is made of it is made here, and not kept in registers while many rows are at hand.
    const uint32_t key_dim = forgotten(p_.key_dim);
    const auto padded = static_cast<uint32_t>(gdn_padded(key_dim));
    float* vectors = work_;                                  // [rows, 2, padded]: keys and queries
    float* shares = vectors + kGdnFewFloats;                 // [rows, 2, kGdnChunk]: A and B
    float* products = shares + 2 * kGdnFewRows * kGdnChunk;  // [rows, 2, kGdnColumns]: p and r
    float* sums = products + 2 * kGdnFewRows * kGdnColumns;  // the same: s and z over pending rows
    for (uint32_t i = thread_; i < 2 * rows * padded / 4; i += kGdnAttendThreads) {
      const uint32_t vector = i * 4 / padded, d = i * 4 % padded, place = chunk_.first + vector / 2;
      async_copy<16>(vectors + i * 4,
                     (vector % 2 == 0 ? chunk_.key(place) : chunk_.query(place)) + d);
    }
    async_commit();
    // What is far away is asked for before anything waits: dot products, the rows' values.
    constexpr uint32_t kShares = kGdnFewRows * kGdnChunk / kGdnAttendThreads;
    float of_key[kShares], of_query[kShares];
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kShares; ++n) {
      const uint32_t i = thread_ + n * kGdnAttendThreads;
      const uint32_t place = chunk_.first + i / kGdnChunk, j = i % kGdnChunk;
      of_key[n] = of_query[n] = 0.0f;
      if (place >= chunk_.end || j > place) continue;
      of_key[n] = load(dots(place) + j);
      of_query[n] = load(dots(place) + kGdnChunk + j);
    }
    float values[kGdnFewRows];
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnFewRows; ++r) {
      values[r] = 0.0f;
      if (thread_ < columns_ && r < rows) values[r] = load(row_values(chunk_.first + r) + thread_);
    }
    gate_rows();
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kShares; ++n) {
      const uint32_t i = thread_ + n * kGdnAttendThreads;
      const uint32_t row = i / kGdnChunk, place = chunk_.first + row, j = i % kGdnChunk;
      if (place >= chunk_.end || j > place) continue;
      const float decay = exp(load(decay_ + place) - load(decay_ + j));
      float* to = shares + 2 * row * kGdnChunk + j;
      store(to, (load(beta_ + place) * of_key[n]) * decay);
      store(to + kGdnChunk, of_query[n] * decay);
    }
    async_wait<0>();
    block_barrier();  // the state, pending rows, vectors and shares are there

    constexpr uint32_t kTeams = kGdnAttendThreads / kGdnColumns;
    const uint32_t team = thread_ / kGdnColumns, column = thread_ % kGdnColumns;
    each_column_sum(
        vectors, padded, team, kTeams, 2 * rows, state_ + column, kGdnColumns, key_dim,
        [&](uint32_t vector, float sum) { store(products + vector * kGdnColumns + column, sum); });
    each_column_sum(shares, kGdnChunk, (team + kTeams / 2) % kTeams, kTeams, 2 * rows,
                    values_ + column, kGdnColumns, chunk_.first, [&](uint32_t vector, float sum) {
                      store(sums + vector * kGdnColumns + column, sum);
                    });
    block_barrier();  // products and sums are written before the first team goes on with them
    if (team == 0) finish_few(rows, values, shares, products, sums);
    block_barrier();  // V is written before it is folded
  }

  /// The step's own rows, one after another, by one thread a column.
  ATLAS_DEVICE void finish_few(uint32_t rows, const float (&values)[kGdnFewRows],
                               const float* shares, const float* products, const float* sums) {
    using namespace device;
    const uint32_t column = thread_;
    float s[kGdnFewRows], z[kGdnFewRows];
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnFewRows; ++r) {
      s[r] = z[r] = 0.0f;
      if (r >= rows) continue;
      s[r] = load(sums + 2 * r * kGdnColumns + column);
      z[r] = load(sums + (2 * r + 1) * kGdnColumns + column);
    }
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnFewRows; ++r) {
      if (r >= rows) continue;
      const uint32_t place = chunk_.first + r;
      const float factor = load(factor_ + place);
      const float left = fma(-factor, load(products + 2 * r * kGdnColumns + column), values[r]);
      const float v = fma(load(beta_ + place), left, 0.0f - s[r]);
      ATLAS_UNROLL
      for (uint32_t later = 0; later < kGdnFewRows; ++later) {
        if (later < r || later >= rows) continue;
        const float* share = shares + 2 * later * kGdnChunk + place;
        if (later > r) s[later] = fma(load(share), v, s[later]);
        z[later] = fma(load(share + kGdnChunk), v, z[later]);
      }
      store(values_ + place * kGdnColumns + column, v);
      if (last_ && column < columns_) store(slot_values_ + place * value_stride_ + column, v);
      if (first_column_ + column < p_.value_dim) {
        store(outputs(place) + column,
              fma(factor, load(products + (2 * r + 1) * kGdnColumns + column), z[r]));
      }
    }
  }

  /// beta, G and e^G of the chunk's rows. Begins and ends with a barrier's worth of order for what
  /// the block wrote to shared memory.
  ATLAS_DEVICE void gate_rows() {
    using namespace device;
    const uint32_t rows = chunk_.end - chunk_.first;
    const float rate = exp(load(p_.a_log + head_)), bias = load(p_.dt_bias + head_);
    for (uint32_t i = thread_; i < rows; i += kGdnAttendThreads) {
      const uint64_t row = uint64_t{row_} + i;
      const float step = gdn_softplus(load(p_.a + row * p_.a_stride + head_) + bias);
      store(beta_ + chunk_.first + i, sigmoid(load(p_.b + row * p_.b_stride + head_)));
      store(decay_ + chunk_.first + i, 0.0f - rate * step);
    }
    block_barrier();  // steps are written before one thread adds them
    if (thread_ == 0) {
      float sum = chunk_.first == 0 ? 0.0f : load(decay_ + chunk_.first - 1);
      for (uint32_t i = chunk_.first; i < chunk_.end; ++i) {
        sum += load(decay_ + i);
        store(decay_ + i, sum);
      }
    }
    block_barrier();  // G is written before all read it
    for (uint32_t i = thread_; i < rows; i += kGdnAttendThreads) {
      const float sum = load(decay_ + chunk_.first + i);
      store(factor_ + chunk_.first + i, exp(sum));
      if (first_column_ == 0) {
        store(p_.decays + (uint64_t{row_} + i) * p_.value_heads + head_, sum);
      }
    }
  }

  /// e^(G_L - G) of a full chunk whose rows came one by one.
  ATLAS_DEVICE void fold_factors() {
    using namespace device;
    const float last = load(decay_ + kGdnChunk - 1);
    for (uint32_t j = thread_; j < kGdnChunk; j += kGdnAttendThreads) {
      store(fold_ + j, exp(last - load(decay_ + j)));
    }
    block_barrier();  // factors are written before others take them
  }
};

}  // namespace atlas::kernels
