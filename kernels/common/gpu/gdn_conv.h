// gdn_conv and gdn_keep for every GPU pack: the short convolution of Gated DeltaNet with what
// follows from keys and queries alone, and what a slot keeps of a step (kernels/common/gdn.h).
//
// gdn_conv: a block takes one key head (its queries and keys) or one value head of the rows that a
// span has in one chunk. A row's channels are 16 lanes' work, in which the CPU pack sums squares
// too. A key head's block goes on to the dot products of its rows with the chunk's keys.
#pragma once

#include "kernels/common/gpu/gdn_parts.h"

namespace atlas::kernels {

/// The rows of a span in one chunk, for all heads.
struct ConvTile {
  RowSpan span;
  uint32_t row;    // of the set, of the first one
  uint32_t index;  // its position
  uint32_t rows;
  bool begins;  // the span's first tile
};

/// The tile of a number, which spans share out in their order. False: there are fewer.
ATLAS_DEVICE bool find_tile(const RowSet* set, uint32_t number, ConvTile& tile) {
  using namespace device;
  const uint32_t spans = load(&set->span_count);
  const RowSpan* all = load(&set->spans);
  for (uint32_t s = 0; s < spans; ++s) {
    const uint32_t index = load(&all[s].index), count = load(&all[s].row_count);
    if (count == 0) continue;
    const uint32_t chunk = index / kGdnChunk;
    const uint32_t tiles = (index + (count - 1)) / kGdnChunk - chunk + 1;
    if (number >= tiles) {
      number -= tiles;
      continue;
    }
    tile.span = load_span(all + s);
    if (!gdn_serves(tile.span)) return false;
    tile.begins = number == 0;
    tile.index = number == 0 ? index : (chunk + number) * kGdnChunk;
    tile.row = tile.span.first_row + (tile.index - index);
    const uint32_t left = count - (tile.index - index);
    const uint32_t room = kGdnChunk - tile.index % kGdnChunk;
    tile.rows = left < room ? left : room;
    return true;
  }
  return false;
}

/// Rows of one span's qkv by position; null before the sequence.
ATLAS_DEVICE const float* conv_input(const GdnConvParams& p, const RowSpan& span, int64_t position,
                                     uint64_t channel) {
  if (position < 0) return nullptr;
  if (position >= span.index) {
    const uint64_t row = span.first_row + static_cast<uint64_t>(position - span.index);
    return p.qkv + row * p.qkv_stride + channel;
  }
  const GdnShape shape = gdn_shape(p);
  const auto before = static_cast<uint32_t>(position);
  if (before >= span.anchor_index) {
    const auto* slot = reinterpret_cast<const float*>(p.slots + span.slot * p.slot_stride);
    return slot + before % gdn_ring_rows(p.taps) * gdn_channels(shape) + channel;
  }
  const auto* anchor = reinterpret_cast<const float*>(p.anchors + span.anchor * p.anchor_stride);
  const uint32_t kept = before + p.taps - 1 - span.anchor_index;
  return anchor + gdn_anchor_history(shape) + kept * gdn_channels(shape) + channel;
}

/// What a row of a head becomes, and where: `to` in the workspace and, if not null, `also` in
/// shared memory, padded with zeros.
struct ConvHead {
  uint64_t channel;
  uint32_t width;
  bool unit;  // of unit length, then times scale
  float scale;
};

/// One row of at most 16 * kGroups channels, by the 16 lanes of `mask`, of which this is `lane`.
template <uint32_t kGroups>
ATLAS_DEVICE void convolve_row(const GdnConvParams& p, const RowSpan& span, int64_t position,
                               const ConvHead& head, uint32_t lane, uint32_t mask, float* to,
                               float* also) {
  using namespace device;
  float x[kGroups];
  ATLAS_UNROLL
  for (float& sum : x) sum = 0.0f;
  const float* weights = p.conv + head.channel * p.taps;
  const uint32_t last = head.width - 1;
  for (uint32_t t = 0; t < p.taps; ++t) {
    const float* in = conv_input(p, span, position + t - (p.taps - 1), head.channel);
    if (in == nullptr) continue;  // zeros leave a sum as it is
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) {
      // Channels past the head read its last one, and become zeros below.
      const uint32_t c = g * 16 + lane < last ? g * 16 + lane : last;
      x[g] = fma(load(weights + c * p.taps + t), load(in + c), x[g]);
    }
  }
  float squares = 0.0f;
  ATLAS_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    x[g] = g * 16 + lane <= last ? silu(x[g]) : 0.0f;
    squares = fma(x[g], x[g], squares);
  }
  if (head.unit) {
    for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart, mask);
    const float unit = divide(1.0f, square_root(squares + 1e-6f));
    ATLAS_UNROLL
    for (float& value : x) value = (value * unit) * head.scale;
  }
  ATLAS_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    if (g * 16 > last) continue;
    store(to + g * 16 + lane, x[g]);
    if (also != nullptr) store(also + g * 16 + lane, x[g]);
  }
}

/// kRows rows of a tile from `first` on, as convolve_row does them, for four taps and heads of at
/// most 128: a lane has its channels' taps and all rows that these reach in registers.
template <uint32_t kRows>
ATLAS_DEVICE void convolve_run(const GdnConvParams& p, const ConvTile& tile, uint32_t first,
                               const ConvHead& head, uint32_t lane, uint32_t mask, float* to,
                               uint64_t to_stride, float* also, uint32_t also_stride) {
  using namespace device;
  constexpr uint32_t kTaps = 4, kGroups = 8, kAtOnce = 2, kReach = kRows + kTaps - 1;
  const uint32_t last = head.width - 1;
  const float* in[kReach];
  // Rows past the tile are its last one, and go nowhere.
  const uint32_t left = tile.rows - 1 - first, ends = left < kRows ? left + kTaps - 1 : kReach - 1;
  const uint32_t before = tile.index - tile.span.index + first;  // rows of the step
  if (before >= kTaps - 1) {
    const uint64_t row = uint64_t{tile.row} + first - (kTaps - 1);
    const float* begin = p.qkv + row * p.qkv_stride + head.channel;
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kReach; ++j) in[j] = begin + (j < ends ? j : ends) * p.qkv_stride;
  } else {
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kReach; ++j) {
      const int64_t position = int64_t{tile.index} + first + (j < ends ? j : ends) - (kTaps - 1);
      in[j] = conv_input(p, tile.span, position, head.channel);
    }
  }
  float x[kRows][kGroups];
  ATLAS_UNROLL
  for (uint32_t begin = 0; begin < kGroups; begin += kAtOnce) {
    Floats4 weights[kAtOnce];
    float rows[kReach][kAtOnce];
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kAtOnce; ++g) {
      // Channels past the head read its last one, and become zeros below.
      const uint32_t at = (begin + g) * 16 + lane, c = at < last ? at : last;
      weights[g] = load_as<Floats4>(p.conv + (head.channel + c) * kTaps);
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kReach; ++j) {
        rows[j][g] = 0.0f;
        if (in[j] != nullptr) rows[j][g] = load(in[j] + c);
      }
    }
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      ATLAS_UNROLL
      for (uint32_t g = 0; g < kAtOnce; ++g) {
        float sum = 0.0f;
        ATLAS_UNROLL
        for (uint32_t t = 0; t < kTaps; ++t) sum = fma(weights[g].f[t], rows[r + t][g], sum);
        x[r][begin + g] = (begin + g) * 16 + lane <= last ? silu(sum) : 0.0f;
      }
    }
  }
  if (head.unit) {
    ATLAS_UNROLL
    for (auto& row : x) {
      float squares = 0.0f;
      ATLAS_UNROLL
      for (const float value : row) squares = fma(value, value, squares);
      for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart, mask);
      const float unit = divide(1.0f, square_root(squares + 1e-6f));
      ATLAS_UNROLL
      for (float& value : row) value = (value * unit) * head.scale;
    }
  }
  ATLAS_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    if (first + r >= tile.rows) continue;
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) {
      if (g * 16 > last) continue;
      store(to + (first + r) * to_stride + g * 16 + lane, x[r][g]);
      if (also != nullptr) store(also + (first + r) * also_stride + g * 16 + lane, x[r][g]);
    }
  }
}

/// The rows of a tile, by `halves` half warps of which this is number `half`; each goes to `to` +
/// row * to_stride.
ATLAS_DEVICE void convolve_rows(const GdnConvParams& p, const ConvTile& tile, const ConvHead& head,
                                uint32_t half, uint32_t halves, float* to, uint64_t to_stride,
                                float* also, uint32_t also_stride) {
  using namespace device;
  constexpr uint32_t kRun = 4;
  const uint32_t lane = thread_index() % 16, mask = 0xffffu << thread_index() / 16 % 2 * 16;
  if (p.taps == 4 && head.width <= 128 && reinterpret_cast<uint64_t>(p.conv) % 16 == 0) {
    if (tile.rows <= halves) {
      if (half >= tile.rows) return;
      convolve_run<1>(p, tile, half, head, lane, mask, to, to_stride, also, also_stride);
      return;
    }
    ATLAS_ROLLED
    for (uint32_t r = kRun * half; r < tile.rows; r += kRun * halves) {
      convolve_run<kRun>(p, tile, r, head, lane, mask, to, to_stride, also, also_stride);
    }
    return;
  }
  for (uint32_t r = half; r < tile.rows; r += halves) {
    const int64_t position = int64_t{tile.index} + r;
    float* second = also == nullptr ? nullptr : also + r * also_stride;
    if (head.width <= 128) {
      convolve_row<8>(p, tile.span, position, head, lane, mask, to + r * to_stride, second);
    } else {
      convolve_row<16>(p, tile.span, position, head, lane, mask, to + r * to_stride, second);
    }
  }
}

/// The rows before next_index into the next anchor, for the channels of a head.
ATLAS_DEVICE void keep_history(const GdnConvParams& p, const RowSpan& span, const ConvHead& head) {
  using namespace device;
  if (span.next_anchor == kNoAnchor) return;
  const GdnShape shape = gdn_shape(p);
  auto* anchor = reinterpret_cast<float*>(p.anchors + span.next_anchor * p.anchor_stride);
  for (uint32_t j = 0; j + 1 < p.taps; ++j) {
    float* to = anchor + gdn_anchor_history(shape) + j * gdn_channels(shape) + head.channel;
    const float* from =
        conv_input(p, span, int64_t{span.next_index} - (p.taps - 1) + j, head.channel);
    for (uint32_t c = thread_index(); c < head.width; c += kGdnConvThreads) {
      store(to + c, from == nullptr ? 0.0f : load(from + c));
    }
  }
}

/// Few rows: the chunk's keys stand in shared memory, the pending ones since begin_pending_keys.
ATLAS_DEVICE void begin_pending_keys(const DeltaChunk& chunk, float* panel) {
  using namespace device;
  const uint32_t quads = (chunk.first + 3) / 4;
  for (uint32_t i = thread_index(); i < quads * chunk.key_dim; i += kGdnConvThreads) {
    const uint32_t d = i / quads, place = i % quads * 4;
    const uint32_t from = place < kMaxVerifyRows ? place + chunk.early : place;
    async_copy<16>(panel + d * kGdnChunk + place, chunk.pending + d * kGdnKeyPlaces + from);
  }
  async_commit();
}

/// Dot products of few rows, whose keys and queries stand in `vectors` [rows, 2, padded].
ATLAS_DEVICE void few_dots(const DeltaChunk& chunk, float* panel, const float* vectors, float* dots,
                           uint64_t dots_stride) {
  using namespace device;
  const uint32_t rows = chunk.end - chunk.first;
  const auto padded = static_cast<uint32_t>(gdn_padded(chunk.key_dim));
  async_wait<0>();
  block_barrier();  // pending keys and the rows' vectors are there; the panel's last quads too
  for (uint32_t i = thread_index(); i < rows * chunk.key_dim; i += kGdnConvThreads) {
    const uint32_t row = i % rows, d = i / rows;
    store(panel + d * kGdnChunk + chunk.first + row, load(vectors + 2 * row * padded + d));
  }
  block_barrier();  // the rows' keys are in the panel
  const uint32_t place = warp_index() % 2 * kWarpLanes + lane_index();
  const float* column = panel + (place < chunk.end ? place : chunk.end - 1);
  each_column_sum(vectors, padded, warp_index() / 2, kGdnConvThreads / kWarpLanes / 2, 2 * rows,
                  column, kGdnChunk, chunk.key_dim, [&](uint32_t vector, float sum) {
                    const uint32_t row = vector / 2;
                    if (place > chunk.first + row) return;
                    store(dots + row * dots_stride + vector % 2 * kGdnChunk + place, sum);
                  });
}

/// Dot products of many rows: a thread has 8 keys or queries times 4 keys.
ATLAS_DEVICE void many_dots(const DeltaChunk& chunk, float* buffers, float* dots,
                            uint64_t dots_stride) {
  using namespace device;
  block_barrier();  // the block's rows are in the workspace before others read them
  const uint32_t keys = thread_index() % 16 * 4, vectors = thread_index() / 16 * 8;
  DeltaSums<8> tile;
  tile.clear();
  each_key_slice<kGdnConvThreads>(
      thread_index(), chunk, true, buffers, [&](const float* slice, uint32_t, uint32_t count) {
        const float *left = slice + vectors, *right = slice + keys;
        if (count == kGdnSlice) {
          ATLAS_UNROLL_4
          for (uint32_t e = 0; e < kGdnSlice; ++e) {
            tile.add(left + e * kGdnSliceStride, right + e * kGdnSliceStride);
          }
          return;
        }
        ATLAS_ROLLED
        for (uint32_t e = 0; e < count; ++e) {
          tile.add(left + e * kGdnSliceStride, right + e * kGdnSliceStride);
        }
      });
  ATLAS_UNROLL
  for (uint32_t r = 0; r < 8; ++r) {
    const uint32_t place = vectors % kGdnChunk + r;
    if (place < chunk.first || place >= chunk.end) continue;
    float* to = dots + (place - chunk.first) * dots_stride + vectors / kGdnChunk * kGdnChunk + keys;
    // What lies past the diagonal is not read.
    if (keys <= place) {
      store_as(to, Floats4{{tile.at[r][0], tile.at[r][1], tile.at[r][2], tile.at[r][3]}});
    }
  }
}

/// Blocks of a multiprocessor. GB10's memory is busy with one; two would spill registers there.
#if defined(ATLAS_ARCH_GB10)
inline constexpr uint32_t kGdnConvBlocks = 1;
#else
inline constexpr uint32_t kGdnConvBlocks = 2;
#endif

ATLAS_DEVICE_KERNEL_BLOCKS(gdn_conv, GdnConvParams, kGdnConvThreads, kGdnConvBlocks) {
  using namespace device;
  ConvTile tile;
  if (!find_tile(params.rows, block_index<1>(), tile)) return;
  const GdnShape shape = gdn_shape(params);
  const uint32_t half = thread_index() / 16;
  constexpr uint32_t kHalves = kGdnConvThreads / 16;
  const uint64_t row_floats = gdn_row_floats(shape);
  const auto padded = static_cast<uint32_t>(gdn_padded(shape.key_dim));
  float* rows = params.mixed + tile.row * row_floats;

  const bool of_values = block_index() >= shape.key_heads;
  const uint32_t head = of_values ? block_index() - shape.key_heads : block_index();
  const auto* slot =
      reinterpret_cast<const float*>(params.slots + tile.span.slot * params.slot_stride);
  DeltaChunk chunk;
  chunk.first = tile.index % kGdnChunk;
  chunk.end = chunk.first + tile.rows;
  chunk.row_floats = row_floats;
  chunk.rows = rows - chunk.first * row_floats;
  chunk.query_offset = head * padded;
  chunk.key_offset = (shape.key_heads + head) * padded;
  chunk.key_dim = shape.key_dim;
  chunk.pending = slot + gdn_slot_keys(shape) + uint64_t{head} * shape.key_dim * kGdnKeyPlaces;
  chunk.early = gdn_early_keys(tile.index);
  float* panel = shared_memory<float>();
  float* vectors = panel + gdn_conv_panel_floats(shape.key_dim);
  const bool few = !of_values && gdn_conv_panel_floats(shape.key_dim) != 0 &&
                   gdn_few_rows(tile.rows, shape.key_dim);
  if (few) begin_pending_keys(chunk, panel);

  // A key head's block: half of the lanes' 16 take keys, the other half queries.
  const bool is_query = !of_values && half % 2 != 0;
  ConvHead mine{};
  uint64_t place = 0;
  if (of_values) {
    mine = {2ull * shape.key_heads * shape.key_dim + uint64_t{head} * shape.value_dim,
            shape.value_dim, false, 1.0f};
    place = 2ull * shape.key_heads * padded + head * gdn_padded(shape.value_dim);
  } else {
    const float scale = divide(1.0f, square_root(static_cast<float>(shape.key_dim)));
    mine = {uint64_t{is_query ? head : shape.key_heads + head} * shape.key_dim, shape.key_dim, true,
            is_query ? scale : 1.0f};
    place = is_query ? chunk.query_offset : chunk.key_offset;
  }
  convolve_rows(params, tile, mine, of_values ? half : half / 2, of_values ? kHalves : kHalves / 2,
                rows + place, row_floats, few ? vectors + half % 2 * padded : nullptr, 2 * padded);
  if (of_values) {
    if (tile.begins) keep_history(params, tile.span, mine);
    return;
  }
  if (tile.begins) {
    for (uint32_t of = head; of < 2 * shape.key_heads; of += shape.key_heads) {
      keep_history(params, tile.span, {uint64_t{of} * shape.key_dim, shape.key_dim, true, 1.0f});
    }
  }
  const uint64_t dots_stride = gdn_row_dots(shape);
  float* dots = params.dots + tile.row * dots_stride + head * 2 * kGdnChunk;
  if (few) {
    few_dots(chunk, panel, vectors, dots, dots_stride);
  } else {
    many_dots(chunk, panel, dots, dots_stride);
  }
}

/// A block takes a key head: its keys, the G of its value heads, and a part of the channels.
ATLAS_DEVICE_KERNEL(gdn_keep, GdnKeepParams, kGdnKeepThreads) {
  using namespace device;
  if (block_index<1>() >= load(&params.rows->span_count)) return;
  const RowSpan span = load_span(load(&params.rows->spans) + block_index<1>());
  if (!gdn_serves(span)) return;
  const GdnShape shape = gdn_shape(params);
  auto* slot = reinterpret_cast<float*>(params.slots + span.slot * params.slot_stride);
  const uint32_t head = block_index();

  const uint64_t last = uint64_t{span.index} + span.row_count - 1;
  const uint64_t chunk = last / kGdnChunk * kGdnChunk;
  const uint32_t skipped = chunk > span.index ? static_cast<uint32_t>(chunk - span.index) : 0;
  const uint32_t rows = span.row_count - skipped;
  const uint32_t place = (span.index + skipped) % kGdnChunk;
  const uint64_t first_row = uint64_t{span.first_row} + skipped;

  const uint64_t row_floats = gdn_row_floats(shape);
  const float* mixed =
      params.mixed + first_row * row_floats + (shape.key_heads + head) * gdn_padded(shape.key_dim);
  float* keys = slot + gdn_slot_keys(shape) + uint64_t{head} * shape.key_dim * kGdnKeyPlaces;
  for (uint32_t i = thread_index(); i < rows * shape.key_dim; i += kGdnKeepThreads) {
    const uint32_t row = i % rows, d = i / rows;
    store(keys + d * kGdnKeyPlaces + gdn_key_place(span.index + skipped + row),
          load(mixed + row * row_floats + d));
  }
  const uint32_t of_key = shape.value_heads / shape.key_heads;
  float* decays = slot + gdn_slot_decays(shape) + place;
  for (uint32_t i = thread_index(); i < rows * of_key; i += kGdnKeepThreads) {
    const uint32_t row = i % rows, value_head = head * of_key + i / rows;
    store(decays + value_head * kGdnChunk + row,
          load(params.decays + (first_row + row) * shape.value_heads + value_head));
  }
  const uint64_t channels = gdn_channels(shape), part = channels / shape.key_heads;
  const uint32_t ring = gdn_ring_rows(shape.taps);
  const uint32_t kept = span.row_count < ring ? span.row_count : ring;
  for (uint32_t r = span.row_count - kept; r < span.row_count; ++r) {
    const float* from =
        params.qkv + (uint64_t{span.first_row} + r) * params.qkv_stride + head * part;
    float* to = slot + (span.index + r) % ring * channels + head * part;
    for (uint64_t c = thread_index(); c < part; c += kGdnKeepThreads) store(to + c, load(from + c));
  }
}

}  // namespace atlas::kernels
