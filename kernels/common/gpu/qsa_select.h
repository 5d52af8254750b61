// qsa_score and qsa_select for every GPU pack: scores of blocks of positions by matrix
// instructions, and each row's choice of them (gpu_qsa.h).
#pragma once

#include "kernels/common/gpu/attention.h"
#include "kernels/common/gpu_qsa.h"

namespace atlas::kernels {

/// Rows of one sequence that choose, and are scored together.
struct ScoreTile {
  const uint32_t* table;
  uint32_t first_row, rows;
  uint32_t index;  // of the first row

  ATLAS_DEVICE uint32_t blocks(uint32_t r, uint32_t ratio) const { return (index + r + 1) / ratio; }
};

/// The rows of a span that choose and are in the record's range: the first, and how many.
struct ChoosingRows {
  uint32_t first, count;
};
ATLAS_DEVICE ChoosingRows choosing_rows(const QsaGpuSelectParams& p, uint32_t row_count,
                                        uint32_t index, uint32_t first_row) {
  RowSpan span{};
  span.row_count = row_count;
  span.index = index;
  const uint32_t dense = qsa_dense_rows(span, p.ratio, p.budget_blocks);
  const uint32_t begin = first_row + dense > p.first_row ? first_row + dense : p.first_row;
  const uint32_t end = first_row + row_count, limit = p.first_row + p.row_limit;
  const uint32_t stop = end < limit ? end : limit;
  return {begin, stop > begin ? stop - begin : 0};
}

ATLAS_DEVICE bool find_score_tile(const QsaGpuSelectParams& p, uint32_t number, ScoreTile& tile) {
  using namespace device;
  const uint32_t tile_rows = qsa_score_tile_rows(p.heads);
  uint32_t before = 0;
  const RowSpan* span = find_span(
      p.rows, number,
      [&](uint32_t row_count, uint32_t index, uint32_t first_row) {
        return (choosing_rows(p, row_count, index, first_row).count + tile_rows - 1) / tile_rows;
      },
      before);
  if (span == nullptr) return false;
  const uint32_t first_row = load(&span->first_row), index = load(&span->index);
  const ChoosingRows rows = choosing_rows(p, load(&span->row_count), index, first_row);
  const uint32_t done = (number - before) * tile_rows;
  tile.first_row = rows.first + done;
  tile.rows = rows.count - done < tile_rows ? rows.count - done : tile_rows;
  tile.index = index + (tile.first_row - first_row);
  tile.table = page_table(p.control, load(&span->slot));
  return has_page(p.control, tile.index + tile.rows - 1);
}

/// Queries of a tile: of every 8 query heads (row r, head h: r * heads + h), rows of hi then of lo.
ATLAS_DEVICE void stage_index_queries(const QsaGpuSelectParams& p, const ScoreTile& tile,
                                      uint8_t* staged) {
  using namespace device;
  const uint32_t dims = attention_dims(p.head_dim), pitch = attention_query_pitch(p.head_dim);
  const uint32_t all = (tile.rows * p.heads + 7) / 8 * 8;
  for (uint32_t c = warp_index(); c < all; c += kQsaScoreWarps) {
    const uint32_t r = c / p.heads;
    const float* q =
        p.q + (uint64_t{tile.first_row} + r) * p.q_stride + uint64_t{c % p.heads} * p.head_dim;
    const uint32_t row = c / 8 * 16 + c % 8;
    for (uint32_t pair = lane_index(); pair < dims / 2; pair += kWarpLanes) {
      float x[2] = {};
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        if (r < tile.rows && 2 * pair + i < p.head_dim) x[i] = load(q + 2 * pair + i);
      }
      const uint32_t hi = bf16_pair(x[0], x[1]);
      const uint32_t lo = bf16_pair(x[0] - bf16_low(hi), x[1] - bf16_high(hi));
      const uint32_t at = pair % 4 * 4;
      store_as<uint32_t>(staged + staged_offset(row, pair / 4, pitch) + at, hi);
      store_as<uint32_t>(staged + staged_offset(row + 8, pair / 4, pitch) + at, lo);
    }
  }
}

/// Of one tile of 16 query rows and 16 blocks: sums over hi and lo and over heads, where a lane of
/// a row's first head has them.
struct BlockScores {
  float of[8];
};
#if defined(ATLAS_HAS_MMA_SYNC)
inline constexpr uint32_t kLaneScores = 4;
/// The query head of the lane, 0..7, and the block of its score i.
ATLAS_DEVICE uint32_t score_head() { return device::lane_index() / 4; }
ATLAS_DEVICE uint32_t score_block(uint32_t i) {
  return 8 * (i / 2) + 2 * (device::lane_index() % 4) + i % 2;
}
ATLAS_DEVICE BlockScores sum_heads(const TileSums& sums, uint32_t heads) {
  BlockScores scores{};
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kLaneScores; ++i) {
    const float dot = sums.r[4 * (i / 2) + i % 2] + sums.r[4 * (i / 2) + i % 2 + 2];
    scores.of[i] = dot > 0.0f ? dot : 0.0f;
  }
  for (uint32_t apart = 1; apart < heads; apart *= 2) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kLaneScores; ++i) {
      scores.of[i] += device::shuffle_xor(scores.of[i], 4 * apart);
    }
  }
  return scores;
}
#else
inline constexpr uint32_t kLaneScores = 8;
ATLAS_DEVICE uint32_t score_head() { return device::lane_index() % 16; }  // 8..15: lo's lanes
ATLAS_DEVICE uint32_t score_block(uint32_t i) { return score_place(i); }
ATLAS_DEVICE BlockScores sum_heads(const TileSums& sums, uint32_t heads) {
  BlockScores scores{};
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kLaneScores; ++i) {
    const float dot = sums.r[i] + device::shuffle_xor(sums.r[i], 8);
    scores.of[i] = dot > 0.0f ? dot : 0.0f;
  }
  for (uint32_t apart = 1; apart < heads; apart *= 2) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kLaneScores; ++i) {
      scores.of[i] += device::shuffle_xor(scores.of[i], apart);
    }
  }
  return scores;
}
#endif

/// Grid: (tiles, tasks).
ATLAS_DEVICE_KERNEL(qsa_score, QsaGpuSelectParams, kQsaScoreThreads) {
  using namespace device;
  ScoreTile tile;
  if (!find_score_tile(params, block_index(), tile)) return;
  const uint32_t blocks = tile.blocks(tile.rows - 1, params.ratio);
  const uint32_t steps = (blocks + kQsaScoreBlocks - 1) / kQsaScoreBlocks;
  const uint32_t tasks = grid_blocks<1>(), each = (steps + tasks - 1) / tasks;
  const uint32_t begin = block_index<1>() * each * kQsaScoreBlocks;
  if (begin >= blocks) return;
  const uint32_t stop =
      begin + each * kQsaScoreBlocks < blocks ? begin + each * kQsaScoreBlocks : blocks;
  auto* staged = shared_memory<uint8_t>();
  stage_index_queries(params, tile, staged);
  block_barrier();  // queries are written before all warps read them

  const uint32_t dims = attention_dims(params.head_dim);
  const uint32_t pitch = attention_query_pitch(params.head_dim);
  const uint32_t page_blocks = qsa_page_blocks(params.ratio);
  const uint32_t query_heads = tile.rows * params.heads;
  ATLAS_ROLLED
  for (uint32_t first = begin + warp_index() * 32; first < stop; first += kQsaScoreBlocks) {
    TileSums sums[kQsaScoreTiles][2] = {};
    ATLAS_ROLLED
    for (uint32_t chunk = 0; chunk < dims / 32; ++chunk) {
      KeyChunk keys[2];
      ATLAS_UNROLL
      for (uint32_t g = 0; g < 2; ++g) {
        keys[g] = load_keys([&](uint32_t i) -> const uint8_t* {
          const uint32_t block = first + 16 * g + i;
          if (block >= blocks) return nullptr;
          return params.pages + load(tile.table + block / page_blocks) * params.page_stride +
                 params.pooled_offset + attention_key_offset(block % page_blocks, dims) +
                 chunk * 512;
        });
      }
      ATLAS_UNROLL
      for (uint32_t m = 0; m < kQsaScoreTiles; ++m) {
        if (m * 8 >= query_heads) continue;
        const RowChunk rows = load_rows(staged, m * 16, pitch, chunk);
        ATLAS_UNROLL
        for (uint32_t g = 0; g < 2; ++g) multiply_keys(sums[m][g], rows, keys[g]);
      }
    }
    ATLAS_UNROLL
    for (uint32_t m = 0; m < kQsaScoreTiles; ++m) {
      if (m * 8 >= query_heads) continue;
      const uint32_t c = m * 8 + score_head(), r = c / params.heads;
      const bool leads = score_head() < 8 && c % params.heads == 0 && r < tile.rows;
      // Whole groups of four, as qsa_select reads them.
      const uint32_t end = leads ? (tile.blocks(r, params.ratio) + 3) / 4 * 4 : 0;
      float* to = params.scores +
                  uint64_t{tile.first_row + r - params.first_row} * params.score_stride + first;
      ATLAS_UNROLL
      for (uint32_t g = 0; g < 2; ++g) {
        const BlockScores scores = sum_heads(sums[m][g], params.heads);
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kLaneScores; ++i) {
          const uint32_t block = 16 * g + score_block(i);
          if (first + block < end) store(to + block, scores.of[i]);
        }
      }
    }
  }
}

/// One row's choice. Scores are not negative, so their bits order as they do. Rounds of 2,048 bins
/// over what the last chosen score's bits may be find these bits; then warps, each of which has a
/// part of the blocks in their order, count what they choose and list it.
class BlockChoice {
 public:
  ATLAS_DEVICE BlockChoice(const float* scores, uint32_t count) : scores_(scores), count_(count) {
    bins_ = device::shared_memory<uint32_t>();
    above_ = bins_ + kQsaSelectBins;
    equal_ = above_ + kWarps;
    words_ = equal_ + kWarps;
    const uint32_t fours = (count + 3) / 4;
    // A warp's part: whole steps of 128 blocks.
    const uint32_t steps = (fours + kWarps * 32 - 1) / (kWarps * 32);
    begin_ = device::warp_index() * steps * 128;
    end_ = begin_ + steps * 128 < count ? begin_ + steps * 128 : count;
  }

  ATLAS_DEVICE void choose(uint32_t chosen, uint32_t* list) {
    using namespace device;
    uint32_t low = 0, high = 0;
    find_range(low, high);
    uint32_t left = chosen;  // of those within [low, high]
    while (low < high) narrow(low, high, left);
    write_list(low, left, list);
  }

 private:
  static constexpr uint32_t kWarps = kQsaSelectThreads / 32;

  /// Calls what(bits) for the thread's scores.
  template <typename What>
  ATLAS_DEVICE void each_score(const What& what) const {
    using namespace device;
    constexpr uint32_t kAhead = 4;  // loads under way
    ATLAS_ROLLED
    for (uint32_t first = begin_ + 4 * lane_index(); first < end_; first += 128 * kAhead) {
      Words4 four[kAhead];
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kAhead; ++j) {
        if (first + 128 * j < end_) four[j] = load_as<Words4>(scores_ + first + 128 * j);
      }
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kAhead; ++j) {
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          if (first + 128 * j + i < end_) what(four[j].w[i]);
        }
      }
    }
  }

  /// The lowest and the highest bits of scores.
  ATLAS_DEVICE void find_range(uint32_t& low, uint32_t& high) {
    using namespace device;
    uint32_t least = 0xffffffffu, most = 0;
    each_score([&](uint32_t bits) {
      least = bits < least ? bits : least;
      most = bits > most ? bits : most;
    });
    for (uint32_t apart = 16; apart > 0; apart /= 2) {
      const uint32_t a = shuffle_xor(least, apart), b = shuffle_xor(most, apart);
      least = a < least ? a : least;
      most = b > most ? b : most;
    }
    if (lane_index() == 0) {
      store(above_ + warp_index(), least);
      store(equal_ + warp_index(), most);
    }
    block_barrier();  // warps' ranges are written before all read them
    low = 0xffffffffu;
    high = 0;
    for (uint32_t w = 0; w < kWarps; ++w) {
      const uint32_t a = load(above_ + w), b = load(equal_ + w);
      low = a < low ? a : low;
      high = b > high ? b : high;
    }
  }

  /// The last chosen score has bits within [low, high], and `left` of the scores there are chosen:
  /// the same for a bin of this range. Threads count what is not in the lowest bin, which may hold
  /// very many equal scores.
  ATLAS_DEVICE void narrow(uint32_t& low, uint32_t& high, uint32_t& left) {
    using namespace device;
    uint32_t shift = 0;
    while ((high - low) >> shift >= kQsaSelectBins) ++shift;
    for (uint32_t i = thread_index(); i < kQsaSelectBins; i += kQsaSelectThreads) {
      store(bins_ + i, 0u);
    }
    block_barrier();  // bins are cleared before they are counted in
    each_score([&](uint32_t bits) {
      if (bits < low || bits > high) return;
      const uint32_t bin = (bits - low) >> shift;
      if (bin != 0) atomic_add(bins_ + bin, 1u);
    });
    block_barrier();  // all have counted before the bins are read
    if (warp_index() == 0) find_bin(left);
    block_barrier();  // the bin is written before all read it
    const uint32_t bin = load(words_);
    left = load(words_ + 1);
    const uint32_t first = low + (bin << shift), last = first + ((1u << shift) - 1);
    low = first;
    high = last < high ? last : high;
  }

  /// One warp: the bin of the last chosen score, from the highest down, and how many of it are
  /// chosen.
  ATLAS_DEVICE void find_bin(uint32_t left) {
    using namespace device;
    constexpr uint32_t kOwn = kQsaSelectBins / 32;
    const uint32_t top = kQsaSelectBins - 1 - lane_index() * kOwn;  // a lane's highest bin
    uint32_t own = 0;
    for (uint32_t i = 0; i < kOwn; ++i) own += load(bins_ + top - i);
    uint32_t end = own;
    for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
      const uint32_t more = shuffle_up(end, apart);
      if (lane_index() >= apart) end += more;
    }
    const uint32_t reached = ballot(end >= left);
    // Where the bins that were counted in do not reach, it is the lowest.
    const uint32_t all = shuffle(end, kWarpLanes - 1);
    const uint32_t lane = reached != 0 ? lowest_bit(reached) : 0;
    if (lane_index() != lane) return;
    uint32_t bin = 0, rest = left - all;
    if (reached != 0) {
      rest = left - (end - own);
      for (bin = top; load(bins_ + bin) < rest; --bin) rest -= load(bins_ + bin);
    }
    store(words_, bin);
    store(words_ + 1, rest);
  }

  /// Lists what is above `bits`, and the first `ties` of what equals it.
  ATLAS_DEVICE void write_list(uint32_t bits, uint32_t ties, uint32_t* list) {
    using namespace device;
    uint32_t above = 0, equal = 0;
    each_score([&](uint32_t score) {
      above += score > bits ? 1 : 0;
      equal += score == bits ? 1 : 0;
    });
    for (uint32_t apart = 16; apart > 0; apart /= 2) {
      above += shuffle_xor(above, apart);
      equal += shuffle_xor(equal, apart);
    }
    block_barrier();  // the ranges that stood here have been read
    if (lane_index() == 0) {
      store(above_ + warp_index(), above);
      store(equal_ + warp_index(), equal);
    }
    block_barrier();              // warps' counts are written before they are summed up
    uint32_t place = 0, tie = 0;  // of the list; of those that equal
    for (uint32_t w = 0; w < warp_index(); ++w) {
      place += load(above_ + w);
      tie += load(equal_ + w);
    }
    place += tie < ties ? tie : ties;
    const uint32_t below = (1u << lane_index()) - 1;
    for (uint32_t first = begin_; first < end_; first += 128) {
      const uint32_t at = first + 4 * lane_index();
      Words4 four{};
      if (at < count_) four = load_as<Words4>(scores_ + at);
      uint32_t tie_before = tie, chosen_before = place;
      bool is_tie[4];
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        is_tie[i] = at + i < count_ && four.w[i] == bits;
        const uint32_t votes = ballot(is_tie[i]);
        tie_before += count_bits(votes & below);
        tie += count_bits(votes);
      }
      bool is_chosen[4];
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        is_chosen[i] = at + i < count_ && (four.w[i] > bits || (is_tie[i] && tie_before < ties));
        tie_before += is_tie[i] ? 1 : 0;
        const uint32_t votes = ballot(is_chosen[i]);
        chosen_before += count_bits(votes & below);
        place += count_bits(votes);
      }
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        if (is_chosen[i]) store(list + chosen_before++, at + i);
      }
    }
  }

  const float* scores_;
  uint32_t count_, begin_, end_;
  uint32_t *bins_, *above_, *equal_, *words_;
};

/// Grid: (row_limit).
ATLAS_DEVICE_KERNEL(qsa_select, QsaGpuSelectParams, kQsaSelectThreads) {
  using namespace device;
  const uint32_t row = params.first_row + block_index();
  if (row >= load(&params.rows->row_count)) return;
  const uint32_t index = load(&load(&params.rows->rows)[row].index);
  const uint32_t count = (index + 1) / params.ratio;
  if (count <= params.budget_blocks || !has_page(params.control, index)) return;
  BlockChoice choice(params.scores + uint64_t{block_index()} * params.score_stride, count);
  choice.choose(params.budget_blocks, params.lists + uint64_t{row} * params.budget_blocks);
}

}  // namespace atlas::kernels
