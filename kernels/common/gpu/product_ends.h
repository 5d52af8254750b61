// Products of few rows that end in an operation of the core (gpu_ends.h). A block has two groups of
// 16 outputs, which are a block of 32 elements in the encoding of its results; in the end a warp
// takes a row of them, and each of its lanes a column.
#pragma once

#include "kernels/common/gpu/encoded_rows.h"
#include "kernels/common/gpu/linear_half.h"
#include "kernels/common/gpu_ends.h"

namespace atlas::kernels {

/// Block `block` of row `row` of k elements, of which each lane has one, goes to `rows`; with
/// `ends` also the zeros that an encoded row has behind it.
ATLAS_DEVICE void encode_column(void* rows, bool f16, uint64_t row, uint32_t k, uint32_t block,
                                float value, bool ends) {
  using namespace device;
  const auto blocks = static_cast<uint32_t>(encoded_elements(k) / kBlockElements);
  const uint32_t t = lane_index() % 4;
  const bool has_piece = lane_index() < 4;
  if (block < blocks) {
    float held[kWordElements];
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kWordElements; ++i) {
      held[i] = shuffle(value, 16 * (i / 4) + 4 * t + i % 4);
    }
    const Words4 words = {{number_pair(f16, held[0], held[1]), number_pair(f16, held[2], held[3]),
                           number_pair(f16, held[4], held[5]), number_pair(f16, held[6], held[7])}};
    encode_piece(rows, row, k, block, t, words, has_piece, f16);
  }
  if (!ends) return;
  while (++block < blocks) encode_piece(rows, row, k, block, t, Words4{}, has_piece, f16);
}

/// linear_silu asks for the rows' scales where their way is not waited for.
struct HalfEndFormat : HalfFormat {
  static constexpr bool kHeadScales = false;
};

/// Grid (pairs of groups, 1, parts of k). The last block to come at a pair has its results.
template <class F>
ATLAS_DEVICE void linear_silu(const LinearSiluParams& all) {
  using namespace device;
  constexpr uint32_t kWarps = few_warps(kFamily), kBatch = kFamily == MatrixFamily::kMma ? 40 : 20;
  static_assert(F::kDivides);
  const LinearParams& params = all.linear;
  const uint32_t groups = tiles_of(params.n), begin = block_index() * kEndGroups;
  const auto runs = static_cast<uint32_t>(whole_units(params.k, F::kRun));
  const uint32_t parts = grid_blocks<2>(), part = block_index<2>(), first_run = part * runs / parts;
  const FewWork work{static_cast<const uint8_t*>(params.weight) + begin * F::group_bytes(params.k),
                     begin,
                     groups - begin < kEndGroups ? groups - begin : kEndGroups,
                     first_run,
                     (part + 1) * runs / parts - first_run,
                     params.n,
                     params.k};
  FewRing<F> ring;
  few_begin<F, kWarps>(ring, work);
  previous_done();
  const uint32_t row_count = load(params.row_count);
  if (row_count == 0) {
    async_wait<0>();
    return;
  }
  const ProductRows rows{static_cast<const uint8_t*>(params.x), nullptr, params.x_row_bytes, 0,
                         row_count};
  const uint32_t row_cells = row_count * kTileOutputs;
  float* values = params.values + begin * runs * row_cells;
  few_rows<F, kWarps>(ring, work, rows, values + first_run * row_cells, runs, {});
  const uint32_t group = lane_index() / kTileOutputs, in_group = lane_index() % kTileOutputs;
  float scale = 1.0f;
  if (F::kF16 && group < work.groups) {
    scale = F::finish(work.weight + group * F::group_bytes(params.k), in_group, params.k, scale);
  }
  if (!few_is_last(work.weight + F::counter_offset(params.k), parts)) return;

  const uint32_t output = begin * kTileOutputs + lane_index();
  const bool gated = output < all.end.columns;
  for (uint32_t row = warp_index(); row < row_count; row += kWarps) {
    const float* from = values + group * runs * row_cells + row * kTileOutputs + in_group;
    float total = 0.0f;
    ATLAS_ROLLED
    for (uint32_t run = 0; run < runs && group < work.groups; run += kBatch) {
      float held[kBatch];
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kBatch; ++i) {
        if (run + i < runs) held[i] = load(from + (run + i) * row_cells);
      }
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kBatch; ++i) {
        if (run + i < runs) total += held[i];
      }
    }
    if constexpr (F::kF16) total *= scale;
    if (gated) total = silu(total * all.end.scale);
    if (output < params.n) store(params.y + row * params.y_stride + output, total);
    if (all.end.encoded == nullptr) continue;
    encode_column(all.end.encoded, false, row, all.end.columns, block_index(), gated ? total : 0.0f,
                  block_index() + 1 == grid_blocks());
  }
}

/// Grid (blocks of 32 columns of a stream). A block has its columns of every stream.
template <class F>
ATLAS_DEVICE void linear_mean(const LinearMeanParams& all) {
  using namespace device;
  constexpr uint32_t kWarps = few_warps(kFamily);
  static_assert(F::kDivides);
  const LinearParams& params = all.linear;
  const uint32_t columns = all.end.columns, streams = params.n / columns;
  const uint64_t group_bytes = F::group_bytes(params.k);
  const auto runs = static_cast<uint32_t>(whole_units(params.k, F::kRun));
  const FewWork work{
      static_cast<const uint8_t*>(params.weight) + block_index() * kEndGroups * group_bytes,
      0,
      kEndGroups * streams,
      0,
      runs,
      params.n,
      params.k,
      (columns / kTileOutputs - kEndGroups) * group_bytes};
  FewRing<F> ring;
  few_begin<F, kWarps>(ring, work);
  previous_done();
  const uint32_t row_count = load(params.row_count);
  if (row_count == 0) {
    async_wait<0>();
    return;
  }
  const ProductRows rows{static_cast<const uint8_t*>(params.x), nullptr, params.x_row_bytes, 0,
                         row_count};
  const uint32_t row_cells = row_count * kTileOutputs;
  auto* values = shared_memory<float>(few_parts_at(kWarps));
  float* staged = values + few_tasks(kWarps) * row_cells;  // [rows, streams, 32] of x
  const float* x = all.end.x + block_index() * kBlockElements;
  // They come beside the product, in the group of copies that its ring begins next.
  ATLAS_ROLLED
  for (uint32_t i = thread_index(); i < row_count * streams * kBlockElements;
       i += kWarps * kWarpLanes) {
    const uint32_t line = i / kBlockElements, row = line / streams, s = line - row * streams;
    async_copy<4>(staged + i,
                  x + row * all.end.x_stride + s * uint64_t{columns} + i % kBlockElements);
  }
  few_rows<F, kWarps>(ring, work, rows, values, runs, {});
  async_commit();
  async_wait<0>();
  block_barrier();  // values and x are there before other warps read them

  const uint32_t group = lane_index() / kTileOutputs, in_group = lane_index() % kTileOutputs;
  for (uint32_t row = warp_index(); row < row_count; row += kWarps) {
    const float* from = values + group * runs * row_cells + row * kTileOutputs + in_group;
    float gates[kMostMeanStreams] = {};
    ATLAS_ROLLED
    for (uint32_t run = 0; run < runs; ++run, from += row_cells) {
      ATLAS_UNROLL
      for (uint32_t s = 0; s < kMostMeanStreams; ++s) {
        if (s < streams) gates[s] += load(from + s * kEndGroups * runs * row_cells);
      }
    }
    float sum = 0.0f;
    ATLAS_UNROLL
    for (uint32_t s = 0; s < kMostMeanStreams; ++s) {
      if (s >= streams) break;
      const float own = load(staged + (row * streams + s) * kBlockElements + lane_index());
      sum = fma(sigmoid(gates[s]), own, sum);
    }
    sum = divide(sum, static_cast<float>(streams));
    const uint32_t column = block_index() * kBlockElements + lane_index();
    store(params.y + row * params.y_stride + column, sum);
    const bool ends = block_index() + 1 == grid_blocks();
    EncodedRows{all.end.encoded, all.end.encoded_f16}.each([&](void* to, bool f16) {
      encode_column(to, f16, row, columns, block_index(), sum, ends);
    });
  }
}

ATLAS_EARLY_KERNEL(linear_bf16_silu, LinearSiluParams, kFewThreads, kFewBlocks) {
  linear_silu<FloatFormat<FloatLayout::kBF16>>(params);
}
ATLAS_EARLY_KERNEL(linear_half_silu, LinearSiluParams, kFewThreads, kFewBlocks) {
  linear_silu<HalfEndFormat>(params);
}
ATLAS_EARLY_KERNEL(linear_bf16_mean, LinearMeanParams, kFewThreads, kFewBlocks) {
  linear_mean<FloatFormat<FloatLayout::kBF16>>(params);
}

}  // namespace atlas::kernels
