// Rows in the input encodings "bf16_b32" (gpu_weights.h) and "bf16_w64" (gpu_wgmma.h), and in those
// of f16 (gpu_half.h), written by the kernels that make them: the bits that encode_bf16_b32 and its
// like give for the same float32. Where the address of rows is odd, they are in the encoding of
// wgmma from the byte before on.
#pragma once

#include "kernels/common/gpu/quads.h"
#include "kernels/common/gpu/row_numbers.h"
#include "kernels/common/gpu_wgmma.h"

namespace atlas::kernels {

/// Where a kernel leaves the rows that it makes, encoded; null: not.
struct EncodedRows {
  void* bf16 = nullptr;
  void* f16 = nullptr;
  ATLAS_DEVICE bool any() const { return bf16 != nullptr || f16 != nullptr; }
  /// Calls use(rows, is f16) for those that are there. One code for both: what is run once waits
  /// for its instructions.
  template <typename Use>
  ATLAS_DEVICE void each(const Use& use) const {
    ATLAS_ROLLED
    for (uint32_t i = 0; i < 2; ++i) {
      void* rows = i == 0 ? f16 : bf16;
      if (rows != nullptr) use(rows, i == 0);
    }
  }
};

/// Elements at ... at + 3 of row `row`, two pairs, to rows in the encoding of wgmma, unless they
/// lie behind its 64s or are not there. Lanes have them in turn; both of two that begin with an
/// even one come here.
ATLAS_DEVICE void wgmma_encode_four(void* rows, uint64_t row, uint32_t k, uint32_t at, uint32_t low,
                                    uint32_t high, bool is_there) {
  using namespace device;
  // Of two lanes the first writes the first pairs of both, which stand side by side.
  const bool odd = at / 4 % 2 != 0;
  const uint32_t got = shuffle_xor(odd ? low : high, 1);
  const uint64_t row_bytes = wgmma_row_bytes(k);
  if (!is_there || at >= row_bytes / 2) return;
  const uint64_t place = wgmma_encoded_offset(row_bytes, row, odd ? at - 2 : at);
  store_as(static_cast<uint8_t*>(rows) + place, odd ? Words2{{got, high}} : Words2{{low, got}});
}

/// The sum of a piece's elements.
ATLAS_DEVICE float piece_sum(bool f16, const device::Words4& words) {
  float sum = 0.0f;
  ATLAS_UNROLL
  for (uint32_t j = 0; j < 4; ++j) {
    sum += number_low(f16, words.w[j]);
    sum += number_high(f16, words.w[j]);
  }
  return sum;
}

/// Piece t (0..3) of a block of 32 elements of row `row`: elements 4 t ... 4 t + 3 and those 16
/// behind. The four pieces of a block are in neighbouring lanes; warps come whole, and lanes that
/// have no piece say so.
ATLAS_DEVICE void encode_piece(void* rows, uint64_t row, uint32_t k, uint32_t block, uint32_t t,
                               const device::Words4& words, bool has_piece, bool f16 = false) {
  using namespace device;
#if defined(ATLAS_HAS_WGMMA)
  if ((reinterpret_cast<uint64_t>(rows) & 1) != 0) {
    ATLAS_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      wgmma_encode_four(static_cast<uint8_t*>(rows) - 1, row, k,
                        block * kBlockElements + 16 * half + 4 * t, words.w[2 * half],
                        words.w[2 * half + 1], has_piece);
    }
    return;
  }
#endif
  float sum = piece_sum(f16, words);
  sum += shuffle_xor(sum, 1);
  sum += shuffle_xor(sum, 2);
  if (!has_piece) return;
  uint8_t* out = static_cast<uint8_t*>(rows) + row * bf16_row_bytes(k);
  store_as(out + 16 * (4 * uint64_t{block} + t), words);
  if (t == 0) store_as(out + bf16_sums_offset(k) + block * sizeof(float), sum);
}

/// Elements [i, i + 4) of row `row` of k elements go to `rows`; those past its end count as 0.
/// Warps come whole, each with 128 neighbouring elements from a multiple of 128 on; one past the
/// encoded row does nothing.
ATLAS_DEVICE void encode_quad(const EncodedRows& rows, uint64_t row, uint32_t k, uint32_t i,
                              Quad quad) {
  using namespace device;
  if (i >= encoded_elements(k)) return;
  ATLAS_UNROLL
  for (uint32_t j = 0; j < 4; ++j) {
    if (i + j >= k) quad.f[j] = 0.0f;
  }
  // Of eight lanes with a block, the first four take what stands 16 elements behind theirs, too.
  rows.each([&](void* to, bool f16) {
    const uint32_t low = number_pair(f16, quad.f[0], quad.f[1]);
    const uint32_t high = number_pair(f16, quad.f[2], quad.f[3]);
    const Words4 words = {{low, high, shuffle_down(low, 4), shuffle_down(high, 4)}};
    const uint32_t t = lane_index() % 8;
    encode_piece(to, row, k, i / kBlockElements, t, words, t < 4, f16);
  });
}

/// The same for quads i, i + apart, ... that are all elements of the row: their exchanges between
/// lanes are under way together.
template <uint32_t kCount>
ATLAS_DEVICE void encode_quads(void* rows, bool f16, uint64_t row, uint32_t k, uint32_t i,
                               uint32_t apart, const Quad (&quads)[kCount]) {
  using namespace device;
  const uint32_t t = lane_index() % 8;
  Words4 words[kCount];
  ATLAS_UNROLL
  for (uint32_t q = 0; q < kCount; ++q) {
    const uint32_t low = number_pair(f16, quads[q].f[0], quads[q].f[1]);
    const uint32_t high = number_pair(f16, quads[q].f[2], quads[q].f[3]);
    words[q] = {{low, high, shuffle_down(low, 4), shuffle_down(high, 4)}};
  }
#if defined(ATLAS_HAS_WGMMA)
  if ((reinterpret_cast<uint64_t>(rows) & 1) != 0) {
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kCount; ++q) {
      encode_piece(rows, row, k, (i + q * apart) / kBlockElements, t, words[q], t < 4, f16);
    }
    return;
  }
#endif
  float sums[kCount];
  ATLAS_UNROLL
  for (uint32_t q = 0; q < kCount; ++q) sums[q] = piece_sum(f16, words[q]);
  ATLAS_UNROLL
  for (uint32_t q = 0; q < kCount; ++q) sums[q] += shuffle_xor(sums[q], 1);
  ATLAS_UNROLL
  for (uint32_t q = 0; q < kCount; ++q) sums[q] += shuffle_xor(sums[q], 2);
  if (t >= 4) return;
  uint8_t* out = static_cast<uint8_t*>(rows) + row * bf16_row_bytes(k);
  ATLAS_UNROLL
  for (uint32_t q = 0; q < kCount; ++q) {
    const uint32_t block = (i + q * apart) / kBlockElements;
    store_as(out + 16 * (4 * uint64_t{block} + t), words[q]);
    if (t == 0) store_as(out + bf16_sums_offset(k) + block * sizeof(float), sums[q]);
  }
}
template <uint32_t kCount>
ATLAS_DEVICE void encode_quads(const EncodedRows& rows, uint64_t row, uint32_t k, uint32_t i,
                               uint32_t apart, const Quad (&quads)[kCount]) {
  rows.each([&](void* to, bool f16) { encode_quads(to, f16, row, k, i, apart, quads); });
}

/// each_quad for a kernel that makes rows: body(row, group, i) gives the quad, which goes to
/// `encoded`, too. Groups then stand side by side, and more than one have a multiple of 4 elements.
/// The grid is each_quad's, whose blocks cover an encoded row.
template <typename Body>
ATLAS_DEVICE void make_quads(const uint32_t* row_count, uint32_t groups, uint32_t n,
                             const EncodedRows& encoded, const Body& body) {
  using namespace device;
  const uint64_t row = block_index();
  const uint32_t quads = quads_of(n), item = block_index<1>() * kQuadThreads + thread_index();
  if (row >= load(row_count)) return;
  Quad quad = {};
  if (item < groups * quads) {
    const uint32_t group = groups == 1 ? 0 : item / quads;
    quad = body(row, group, (item - group * quads) * 4);
  }
  encode_quad(encoded, row, groups * n, 4 * item, quad);
}
static_assert(4 * kQuadThreads % kEncodedPad == 0);

}  // namespace atlas::kernels
