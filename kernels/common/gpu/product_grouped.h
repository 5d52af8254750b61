// Products of experts over the code of product.h: blocks find an expert's rows by the offsets on
// the device; and rows of W by number.
#pragma once

#include "kernels/common/gpu/product_few.h"
#include "kernels/common/gpu/product_many.h"

namespace atlas::kernels {

/// One expert and at most kRows of its rows.
struct ExpertChunk {
  uint32_t expert, first, count;
};

/// Chunks of at most kRows rows, experts ascending: the one with number `wanted`, count 0 if there
/// are not so many. All threads of the block come here; the shared head is used.
template <uint32_t kRows>
ATLAS_DEVICE ExpertChunk find_chunk(const uint32_t* offsets, uint32_t experts, uint32_t wanted) {
  using namespace device;
  auto* sums = shared_memory<uint32_t>();  // of warps
  auto* found = sums + kProductWarps;      // expert, first, count
  if (thread_index() == 0) store(found + 2, 0u);
  uint32_t before = 0;  // chunks of experts that this loop has passed
  for (uint32_t base = 0; base < experts; base += kProductThreads) {
    const uint32_t expert = base + thread_index();
    uint32_t first = 0, rows = 0;
    if (expert < experts) {
      first = load(offsets + expert);
      rows = load(offsets + expert + 1) - first;
    }
    const uint32_t own = (rows + kRows - 1) / kRows;
    uint32_t through = own;
    ATLAS_UNROLL
    for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
      const uint32_t below = shuffle_up(through, apart);
      if (lane_index() >= apart) through += below;
    }
    if (lane_index() == kWarpLanes - 1) store(sums + warp_index(), through);
    block_barrier();  // the warps' sums are written before they are added up
    uint32_t all = before;
    for (uint32_t w = 0; w < kProductWarps; ++w) {
      const uint32_t sum = load(sums + w);
      if (w < warp_index()) through += sum;
      all += sum;
    }
    through += before;
    if (wanted < through && wanted >= through - own) {
      const uint32_t skipped = (wanted - (through - own)) * kRows;
      store(found, expert);
      store(found + 1, first + skipped);
      store(found + 2, rows - skipped < kRows ? rows - skipped : kRows);
    }
    before = all;
    block_barrier();  // sums are read, and what was found is written
  }
  const uint32_t count = load(found + 2);
  ExpertChunk chunk{0, 0, count};
  if (count != 0) chunk = {load(found), load(found + 1), count};
  block_barrier();  // and read before the next search
  return chunk;
}

/// The chunk of at most kFewRows rows that begins with `row`, count 0 if none does. Every warp
/// looks for itself: its lanes have the experts in turn.
ATLAS_DEVICE ExpertChunk find_row(const uint32_t* offsets, uint32_t experts, uint32_t row) {
  using namespace device;
  constexpr uint32_t kAtOnce = 8;
  ExpertChunk own{0, 0, 0};  // the expert, its first row and how many
  for (uint32_t first = lane_index(); first < experts; first += kAtOnce * kWarpLanes) {
    uint32_t begins[kAtOnce] = {}, ends[kAtOnce] = {};
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t e = first + i * kWarpLanes;
      if (e < experts) {
        begins[i] = load(offsets + e);
        ends[i] = load(offsets + e + 1);
      }
    }
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (begins[i] <= row && row < ends[i]) {
        own = {first + i * kWarpLanes, begins[i], ends[i] - begins[i]};
      }
    }
  }
  const uint32_t found = ballot(own.count != 0);
  if (found == 0) return {0, 0, 0};
  const uint32_t lane = lowest_bit(found), begin = shuffle(own.first, lane);
  const uint32_t left = begin + shuffle(own.count, lane) - row;
  const uint32_t expert = shuffle(own.expert, lane);
  if ((row - begin) % kFewRows != 0) return {0, 0, 0};
  return {expert, row, left < kFewRows ? left : kFewRows};
}

/// The product of an item: chunk number item / parts, of `tiles` groups of outputs.
template <class F, uint32_t kRows, class Multiply>
ATLAS_DEVICE void each_item(const GroupedParams& params, uint32_t tiles, const Multiply& multiply) {
  const uint32_t groups = tiles_of(params.n), parts = (groups + tiles - 1) / tiles;
  for (uint32_t item = device::block_index();; item += device::grid_blocks()) {
    const ExpertChunk chunk = find_chunk<kRows>(params.offsets, params.experts, item / parts);
    if (chunk.count == 0) return;  // for the whole block
    const uint32_t begin = item % parts * tiles;
    const ProductTiles some{
        static_cast<const uint8_t*>(params.weight) + chunk.expert * params.expert_bytes, begin,
        groups - begin < tiles ? groups - begin : tiles, device::opaque(params.n), params.k};
    const ProductRows rows{static_cast<const uint8_t*>(params.x), params.source, params.x_row_bytes,
                           device::opaque(chunk.first), device::opaque(chunk.count)};
    multiply(some, rows, ProductResult{params.y, params.y_stride, false});
  }
}

template <class F>
ATLAS_DEVICE void grouped_few(const GroupedParams& params) {
  using namespace device;
  constexpr uint32_t kWarps = kProductWarps;
  const uint32_t groups = tiles_of(params.n), parts = (groups + params.tiles - 1) / params.tiles;
  const auto runs = static_cast<uint32_t>(whole_units(params.k, F::kRun));
  uint32_t held = 0xffffffffu;  // the chunk that was found last
  ExpertChunk chunk{};
  ATLAS_ROLLED
  for (uint32_t item = block_index();; item += grid_blocks()) {
    if (item / parts != held) {
      held = item / parts;
      chunk = params.by_row != 0 ? find_row(params.offsets, params.experts, held)
                                 : find_chunk<kFewRows>(params.offsets, params.experts, held);
    }
    if (chunk.count == 0) return;  // for the whole block
    const uint32_t begin = item % parts * params.tiles;
    const FewWork work{static_cast<const uint8_t*>(params.weight) +
                           chunk.expert * params.expert_bytes + begin * F::group_bytes(params.k),
                       opaque(begin),
                       opaque(groups - begin < params.tiles ? groups - begin : params.tiles),
                       0,
                       opaque(runs),
                       opaque(params.n),
                       params.k};
    FewRing<F> ring;
    few_begin<F, kWarps>(ring, work);
    few_rows<F, kWarps>(ring, work,
                        {static_cast<const uint8_t*>(params.x), params.source, params.x_row_bytes,
                         opaque(chunk.first), opaque(chunk.count)},
                        nullptr, 0, {params.y, params.y_stride, false});
    if (params.by_row != 0) return;
    block_barrier();  // values and scales are read before the next item's take their place
  }
}

template <class F>
ATLAS_DEVICE void grouped_many(const GroupedParams& params) {
  typename ManyStream<F>::Ring ring;
  each_item<F, kManyRows>(
      params, kManyGroups,
      [&](const ProductTiles& tiles, const ProductRows& rows, const ProductResult& result) {
        many_rows<F>(ring, tiles, rows, result);
      });
}

/// Row id(r) of W as float32: threads take the words of a row in turn.
template <class F>
ATLAS_DEVICE void gather(const GatherParams& params) {
  using namespace device;
  const uint64_t row = block_index();
  if (row >= load(params.row_count)) return;
  constexpr uint32_t kBlocks = F::kUnit / kBlockElements, kRowWords = kBlockElements / 8;
  const auto id =
      load_as<uint32_t>(static_cast<const uint8_t*>(params.ids) + row * params.id_stride);
  const uint8_t* group =
      static_cast<const uint8_t*>(params.weight) + id / kTileOutputs * F::group_bytes(params.k);
  float* y = params.y + row * params.y_stride;
  const uint32_t in_group = id % kTileOutputs;
  const auto units = static_cast<uint32_t>(whole_units(params.k, F::kUnit));
  for (uint32_t i = thread_index(); i < units * kRowWords; i += kGatherThreads) {
    // A row's words of a block: those of four strands, or four of one.
    const uint32_t unit = i / kRowWords, part = i % kRowWords;
    const uint32_t strand = kFamily == MatrixFamily::kMma ? 4 * (in_group % 8) + part : in_group;
    const uint32_t word = kFamily == MatrixFamily::kMma ? in_group / 8 : part;
    ATLAS_UNROLL
    for (uint32_t block = 0; block < kBlocks; ++block) {
      ATLAS_UNROLL
      for (uint32_t e = 0; e < kWordElements; ++e) {
        const uint32_t at =
            unit * F::kUnit + block * kBlockElements + word_element(kFamily, strand, word, e).k;
        if (at < params.k) {
          store(y + at, F::element(group, unit, block, strand, word, e, params.k));
        }
      }
    }
  }
}

inline constexpr uint32_t kFewThreads = few_warps(kFamily) * device::kMatrixLanes;
inline constexpr uint32_t kFewBlocks = 16 / few_warps(kFamily);  // of a unit

}  // namespace atlas::kernels

/// The five kernels of a format: products for few rows and for many, dense and of experts, and
/// rows.
#define ATLAS_PRODUCT_KERNELS(name, F)                                            \
  ATLAS_EARLY_KERNEL(linear_##name, LinearParams, kFewThreads, kFewBlocks) {      \
    linear_few<F>(params);                                                        \
  }                                                                               \
  ATLAS_DEVICE_KERNEL(linear_##name##_many, LinearParams, kProductThreads) {      \
    linear_many<F>(params);                                                       \
  }                                                                               \
  ATLAS_DEVICE_KERNEL_BLOCKS(grouped_##name, GroupedParams, kProductThreads, 2) { \
    grouped_few<F>(params);                                                       \
  }                                                                               \
  ATLAS_DEVICE_KERNEL(grouped_##name##_many, GroupedParams, kProductThreads) {    \
    grouped_many<F>(params);                                                      \
  }                                                                               \
  ATLAS_DEVICE_KERNEL(gather_##name, GatherParams, kGatherThreads) { gather<F>(params); }
