// What the kernels of Gated DeltaNet share: spans and chunks, the tiles that many rows are
// computed in, the sums of few rows. An element's sum is one chain of fma in the order of
// kernels/common/gdn.h whichever of them makes it, so their bits are those of the CPU pack.
#pragma once

#include "kernels/common/device/device.h"
#include "kernels/common/gdn_grids.h"

namespace atlas::kernels {

ATLAS_DEVICE RowSpan load_span(const RowSpan* from) {
  using device::load;
  RowSpan span{};
  span.slot = load(&from->slot);
  span.first_row = load(&from->first_row);
  span.row_count = load(&from->row_count);
  span.index = load(&from->index);
  span.anchor = load(&from->anchor);
  span.anchor_index = load(&from->anchor_index);
  span.next_anchor = load(&from->next_anchor);
  span.next_index = load(&from->next_index);
  return span;
}

/// The rows of one span in one chunk, as one key head has them. Places are positions of the chunk:
/// the step's rows have [first, end), those before are the slot's pending ones.
struct DeltaChunk {
  const float* rows;     // what a row of place 0 would be: queries and keys stand at offsets of it
  const float* pending;  // keys of the slot [key_dim, kGdnKeyPlaces]
  uint64_t row_floats;
  uint32_t query_offset, key_offset;
  uint32_t key_dim;
  uint32_t early;  // gdn_early_keys of the pending ones
  uint32_t first, end;

  ATLAS_DEVICE const float* query(uint32_t place) const {
    return rows + place * row_floats + query_offset;
  }
  ATLAS_DEVICE const float* key(uint32_t place) const {
    return rows + place * row_floats + key_offset;
  }
  /// Four elements of a pending key; 0 past the head.
  ATLAS_DEVICE device::Floats4 pending_key(uint32_t place, uint32_t d) const {
    device::Floats4 four{};
    const float* from = pending + (place < kMaxVerifyRows ? place + early : place);
    ATLAS_UNROLL
    for (uint32_t e = 0; e < 4; ++e) {
      if (d + e < key_dim) four.f[e] = device::load(from + (d + e) * kGdnKeyPlaces);
    }
    return four;
  }
};

/// A thread's sums, of some rows by four columns.
template <uint32_t kRows>
struct DeltaSums {
  float at[kRows][4];

  ATLAS_DEVICE void clear() {
    ATLAS_UNROLL
    for (auto& row : at) {
      ATLAS_UNROLL
      for (float& sum : row) sum = 0.0f;
    }
  }
  /// += as many rows as the tile has times four, both in shared memory.
  ATLAS_DEVICE void add(const float* rows, const float* four) {
    using namespace device;
    Floats4 left[kRows / 4];
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kRows / 4; ++r) left[r] = load_as<Floats4>(rows + 4 * r);
    const Floats4 right = load_as<Floats4>(four);
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      ATLAS_UNROLL
      for (uint32_t c = 0; c < 4; ++c) at[r][c] = fma(left[r / 4].f[r % 4], right.f[c], at[r][c]);
    }
  }
};

/// Vectors of four that a block brings to a slice: of this thread `kItems`.
inline constexpr uint32_t kGdnSliceItems = kGdnSlice * 2 * kGdnChunk / 4;

/// Calls use(buffer, slice) for slices [0, slices), one after another, while the next one is under
/// way: get(slice, item) loads four floats, put(buffer, item, four) stores them. Begins and ends
/// with the buffers free.
template <uint32_t kThreads, typename Get, typename Put, typename Use>
ATLAS_DEVICE void each_slice(uint32_t thread, uint32_t slices, float* buffers, const Get& get,
                             const Put& put, const Use& use) {
  using namespace device;
  constexpr uint32_t kItems = kGdnSliceItems / kThreads;
  Floats4 next[kItems];
  ATLAS_UNROLL
  for (uint32_t n = 0; n < kItems; ++n) {
    put(buffers, thread + n * kThreads, get(0u, thread + n * kThreads));
  }
  block_barrier();  // the first slice is written before it is used
  ATLAS_ROLLED
  for (uint32_t slice = 0; slice < slices; ++slice) {
    const bool more = slice + 1 < slices;
    if (more) {
      ATLAS_UNROLL
      for (uint32_t n = 0; n < kItems; ++n) next[n] = get(slice + 1, thread + n * kThreads);
    }
    use(buffers + slice % 2 * kGdnSliceFloats, slice);
    if (more) {
      ATLAS_UNROLL
      for (uint32_t n = 0; n < kItems; ++n) {
        put(buffers + (slice + 1) % 2 * kGdnSliceFloats, thread + n * kThreads, next[n]);
      }
    }
    block_barrier();  // the next slice is written, and this one has been used
  }
}

/// Calls use(slice, d, count) for slices of the head's elements [d, d + count): in a slice stand,
/// for each element, the keys of all places, then their queries.
template <uint32_t kThreads, typename Use>
ATLAS_DEVICE void each_key_slice(uint32_t thread, const DeltaChunk& chunk, bool with_pending,
                                 float* buffers, const Use& use) {
  using namespace device;
  const auto get = [&](uint32_t slice, uint32_t item) {
    const uint32_t d = slice * kGdnSlice + item % 4 * 4, place = item / 4 % kGdnChunk;
    const bool is_query = item >= kGdnSliceItems / 2;
    if (place >= chunk.first && place < chunk.end) {
      return load_as<Floats4>((is_query ? chunk.query(place) : chunk.key(place)) + d);
    }
    if (with_pending && !is_query && place < chunk.first) return chunk.pending_key(place, d);
    return Floats4{};
  };
  const auto put = [](float* buffer, uint32_t item, const Floats4& four) {
    const uint32_t place = item / 4 % kGdnChunk + item / (kGdnSliceItems / 2) * kGdnChunk;
    ATLAS_UNROLL
    for (uint32_t e = 0; e < 4; ++e) {
      store(buffer + (item % 4 * 4 + e) * kGdnSliceStride + place, four.f[e]);
    }
  };
  each_slice<kThreads>(thread, (chunk.key_dim + kGdnSlice - 1) / kGdnSlice, buffers, get, put,
                       [&](const float* buffer, uint32_t slice) {
                         const uint32_t d = slice * kGdnSlice;
                         const uint32_t left = chunk.key_dim - d;
                         use(buffer, d, left < kGdnSlice ? left : kGdnSlice);
                       });
}

/// sums[n] = sum over d ascending of vectors[n][d] * column[d * stride]. Vectors are aligned to 16
/// bytes.
template <uint32_t kCount>
ATLAS_DEVICE void column_sums(const float* const (&vectors)[kCount], const float* column,
                              uint32_t stride, uint32_t count, float (&sums)[kCount]) {
  using namespace device;
  ATLAS_UNROLL
  for (float& sum : sums) sum = 0.0f;
  constexpr uint32_t kStep = kCount == 1 ? 16 : 4;  // one chain waits for memory, four do not
  uint32_t d = 0;
  ATLAS_ROLLED
  for (; d + kStep <= count; d += kStep) {
    float panel[kStep];
    ATLAS_UNROLL
    for (uint32_t e = 0; e < kStep; ++e) panel[e] = load(column + (d + e) * stride);
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kCount; ++n) {
      ATLAS_UNROLL
      for (uint32_t e = 0; e < kStep; e += 4) {
        const Floats4 four = load_as<Floats4>(vectors[n] + d + e);
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 4; ++i) sums[n] = fma(four.f[i], panel[e + i], sums[n]);
      }
    }
  }
  ATLAS_ROLLED
  for (; d < count; ++d) {
    const float value = load(column + d * stride);
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kCount; ++n) sums[n] = fma(load(vectors[n] + d), value, sums[n]);
  }
}

/// The same for vectors first, first + step, ... below `end`, at most four, which stand
/// `vector_stride` apart from `all` on; calls take(vector, sum).
template <typename Take>
ATLAS_DEVICE void each_column_sum(const float* all, uint32_t vector_stride, uint32_t first,
                                  uint32_t step, uint32_t end, const float* column, uint32_t stride,
                                  uint32_t count, const Take& take) {
  if (first >= end) return;
  if (first + step >= end) {
    const float* const vectors[1] = {all + first * vector_stride};
    float sums[1];
    column_sums(vectors, column, stride, count, sums);
    take(first, sums[0]);
    return;
  }
  const float* vectors[4];
  ATLAS_UNROLL
  for (uint32_t n = 0; n < 4; ++n) {
    // Where there are fewer, the first one again.
    vectors[n] = all + (first + n * step < end ? first + n * step : first) * vector_stride;
  }
  float sums[4];
  column_sums(vectors, column, stride, count, sums);
  ATLAS_UNROLL
  for (uint32_t n = 0; n < 4; ++n) {
    if (first + n * step < end) take(first + n * step, sums[n]);
  }
}

}  // namespace atlas::kernels
