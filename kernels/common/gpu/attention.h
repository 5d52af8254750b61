// The walk of attention over blocks of 256 places, for a tile of query rows of one sequence and kv
// head; contract in gpu_attention.h. In a block, warps divide the keys; then all know each row's
// maximum, weights stand in shared memory, and warps divide the elements of values. So every key
// and value is loaded once for all query rows of the tile, into the registers that its matrix
// instruction wants.
#pragma once

#include "kernels/common/gpu/attention_tile.h"

namespace atlas::kernels {

inline constexpr float kLowest = -__builtin_huge_valf();
inline constexpr float kLog2E = 0x1.715476p+0f;

/// As AttentionForm, at compile time. `kUnits`: groups of 16 elements of values that a warp sums;
/// `kHalves`: warps of the same elements that divide the tiles.
template <uint32_t kWarpCount, uint32_t kTileCount, uint32_t kUnitCount, uint32_t kHalfCount = 1>
struct WalkForm {
  static constexpr uint32_t kWarps = kWarpCount, kTiles = kTileCount, kUnits = kUnitCount,
                            kHalves = kHalfCount;
  static constexpr uint32_t kRows = 16 * kTiles;           // query rows of a tile
  static constexpr uint32_t kOwnTiles = kTiles / kHalves;  // whose values a warp sums
  static constexpr uint32_t kWarpPlaces = kGqaBlockTokens / kWarps;
  static constexpr uint32_t kGroups = kWarpPlaces / 16;
  static_assert(kTiles % kHalves == 0 && kWarpPlaces % 32 == 0);
};

/// The query rows of a block of threads.
struct QueryTile {
  uint32_t slot;
  uint32_t kv_head;
  uint32_t group;      // query heads of a kv head
  uint32_t first_row;  // of the step: of query row 0
  uint32_t index;      // what query row 0 sees, less one
  uint32_t first;      // query rows of the sequence before the tile's
  uint32_t count;      // query rows of the tile

  ATLAS_DEVICE uint32_t row(uint32_t v) const { return (first + v) / group; }
  /// Places that query row v of the tile sees; 0 past its end.
  ATLAS_DEVICE uint32_t places(uint32_t v) const { return v < count ? index + row(v) + 1 : 0; }
  /// Places that its last row sees.
  ATLAS_DEVICE uint32_t all_places() const { return index + row(count - 1) + 1; }
};

/// What is left of `seen` places from block `block` on, at most one block.
ATLAS_DEVICE uint32_t places_in(uint32_t seen, uint32_t block) {
  const uint32_t before = block * kGqaBlockTokens;
  if (seen <= before) return 0;
  return seen - before < kGqaBlockTokens ? seen - before : kGqaBlockTokens;
}

/// Of spans in their order, each with tiles(row_count, index, first_row) tiles: the one with tile
/// number `number` (null: there are fewer tiles), and the tiles of the spans before it.
template <typename Tiles>
ATLAS_DEVICE const RowSpan* find_span(const RowSet* rows, uint32_t number, const Tiles& tiles_of,
                                      uint32_t& before) {
  using namespace device;
  const uint32_t span_count = load(&rows->span_count);
  const RowSpan* spans = load(&rows->spans);
  before = 0;
  for (uint32_t first = 0; first < span_count; first += kWarpLanes) {
    const RowSpan* own = spans + first + lane_index();
    uint32_t tiles = 0;
    if (first + lane_index() < span_count) {
      tiles = tiles_of(load(&own->row_count), load(&own->index), load(&own->first_row));
    }
    uint32_t end = tiles;
    for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
      const uint32_t more = shuffle_up(end, apart);
      if (lane_index() >= apart) end += more;
    }
    end += before;
    const uint32_t found = ballot(end > number);
    if (found != 0) {
      const uint32_t lane = lowest_bit(found);
      before = shuffle(end - tiles, lane);
      return spans + first + lane;
    }
    before = shuffle(end, kWarpLanes - 1);
  }
  return nullptr;
}

/// Whether a row at `index` has its page: control_fetch lets no other pass.
ATLAS_DEVICE bool has_page(const StepControl* control, uint32_t index) {
  return index / kGqaPageTokens < device::load(&control->limits.max_pages);
}
ATLAS_DEVICE const uint32_t* page_table(const StepControl* control, uint32_t slot) {
  return device::load(&control->block_table) +
         uint64_t{slot} * device::load(&control->limits.max_pages);
}

/// Positions of a sequence in order, as the walk's places.
struct PagedPlaces {
  const uint8_t* head;    // the kv head's part of page 0
  const uint32_t* table;  // of the sequence
  uint64_t page_stride;
  uint32_t dims;
  const uint8_t* key_page = nullptr;

  ATLAS_DEVICE PagedPlaces(const GqaAttendParams& p, const QueryTile& tile)
      : head(p.pages + tile.kv_head * attention_head_bytes(p.head_dim)),
        table(page_table(p.control, tile.slot)),
        page_stride(p.page_stride),
        dims(attention_dims(p.head_dim)) {}

  ATLAS_DEVICE const uint8_t* page(uint32_t block, uint32_t place) const {
    const uint32_t number = block * (kGqaBlockTokens / kGqaPageTokens) + place / kGqaPageTokens;
    return head + device::load(table + number) * page_stride;
  }
  /// What a walk over lists does ahead of time for the block after this one.
  ATLAS_DEVICE void look_ahead(uint32_t) {}
  ATLAS_DEVICE void look_up() {}
  ATLAS_DEVICE void keep(uint32_t) {}

  /// Before the keys of a block: the warp's own stand from `place` on, in one page.
  ATLAS_DEVICE void begin_keys(uint32_t block, uint32_t place) { key_page = page(block, place); }
  ATLAS_DEVICE const uint8_t* key(uint32_t place) const {
    return key_page + attention_key_offset(place % kGqaPageTokens, dims);
  }
  /// Element 0 of the four positions from place 4 * quad of the 32 from `first` on.
  struct Values {
    const uint8_t* page;
    uint32_t first, dims;
    ATLAS_DEVICE const uint8_t* quad(uint32_t number) const {
      return page + attention_value_offset(first + 4 * number, dims);
    }
  };
  ATLAS_DEVICE Values values(uint32_t block, uint32_t first) const {
    return {page(block, first), first % kGqaPageTokens, dims};
  }
};

/// Running maxima, weight sums and value sums of the query rows whose values a warp sums.
template <typename Form>
struct WalkState {
  float maximum[Form::kOwnTiles][kLaneRows];
  float weight[Form::kOwnTiles][kLaneRows];
  TileSums sum[Form::kOwnTiles][Form::kUnits];
};

template <typename Form, typename Places>
class AttentionWalk {
 public:
  ATLAS_DEVICE AttentionWalk(const GqaAttendParams& p, const QueryTile& tile, const Places& places)
      : p_(p),
        tile_(tile),
        places_(places),
        dims_(attention_dims(p.head_dim)),
        pitch_(attention_query_pitch(p.head_dim)) {
    using namespace device;
    weights_ = shared_memory<uint8_t>();
    warp_maxima_ = reinterpret_cast<float*>(weights_ + Form::kRows * kGqaBlockTokens * 2);
    maxima_ = warp_maxima_ + Form::kWarps * Form::kRows;
    sums_ = maxima_ + Form::kRows;
    queries_ = reinterpret_cast<uint8_t*>(sums_ + kAttentionSums * Form::kRows);
    constexpr uint32_t kUnitWarps = Form::kWarps / Form::kHalves;
    first_unit_ = warp_index() % kUnitWarps * Form::kUnits;
    first_tile_ = warp_index() / kUnitWarps * Form::kOwnTiles;
  }

  /// Brings the queries to shared memory, and what Places need for the first block.
  ATLAS_DEVICE void begin(uint32_t first_block) {
    using namespace device;
    places_.look_ahead(first_block);
    for (uint32_t v = warp_index(); v < Form::kRows; v += Form::kWarps) {
      const uint32_t at = tile_.first + v, row = at / tile_.group;
      const float* q = p_.q + (uint64_t{tile_.first_row} + row) * p_.q_stride +
                       (tile_.kv_head * tile_.group + at % tile_.group) * uint64_t{p_.head_dim};
      for (uint32_t pair = lane_index(); pair < dims_ / 2; pair += kWarpLanes) {
        uint32_t word = 0;
        if (v < tile_.count && 2 * pair < p_.head_dim) {
          word = bf16_pair(load(q + 2 * pair), load(q + 2 * pair + 1));
        }
        store_as<uint32_t>(queries_ + staged_offset(v, pair / 4, pitch_) + pair % 4 * 4, word);
      }
    }
    places_.look_up();
    places_.keep(first_block);
    block_barrier();  // queries are written before all warps read them
  }

  /// Maxima, weight sums and value sums of one block. All threads of the block come here.
  ATLAS_DEVICE void block(uint32_t block, WalkState<Form>& state) {
    using namespace device;
    zero_ = unknown_zero();
    const uint32_t seen = places_in(tile_.all_places(), block);
    const uint32_t own = warp_index() * Form::kWarpPlaces;  // the warp's first place
    TileSums scores[Form::kTiles][Form::kGroups] = {};
    places_.look_ahead(block + 1);
    if (own < seen) score(block, own, seen, scores);
    ValueBatch values;
    if (kEarlyValues) load_batch(block, seen, 0, values);
    places_.look_up();
    find_maxima(block, own, scores);
    block_barrier();  // all warps' maxima are written, and weights of the block before are read
    places_.keep(block + 1);
    weigh(own, scores);
    block_barrier();  // weights and their sums are written before all warps read them
    load_state(state);
    sum_values(block, seen, values, state);
  }

  template <typename What>
  ATLAS_DEVICE void each_cell(const WalkState<Form>& state, const What& what) const {
    ATLAS_UNROLL
    for (uint32_t m = 0; m < Form::kOwnTiles; ++m) {
      ATLAS_UNROLL
      for (uint32_t u = 0; u < Form::kUnits; ++u) {
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 8; ++i) {
          const uint32_t v = (first_tile_ + m) * 16 + lane_row(cell_row(i));
          const uint32_t element = (first_unit_ + u) * 16 + value_element(i);
          if (v < tile_.count && element < p_.head_dim) {
            what(v, element, state.sum[m][u].r[i], m, cell_row(i));
          }
        }
      }
    }
  }

  /// Joins block `block` to the blocks before it.
  ATLAS_DEVICE void join(WalkState<Form>& all, const WalkState<Form>& more, uint32_t block) const {
    using namespace device;
    if (block == 0) {
      all = more;
      return;
    }
    ATLAS_UNROLL
    for (uint32_t m = 0; m < Form::kOwnTiles; ++m) {
      float a[kLaneRows], c[kLaneRows];
      bool sees[kLaneRows];
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kLaneRows; ++r) {
        const uint32_t v = (first_tile_ + m) * 16 + lane_row(r);
        sees[r] = tile_.places(v) > block * kGqaBlockTokens;
        if (!sees[r]) continue;
        const float old = all.maximum[m][r], now = more.maximum[m][r];
        const float joint = now > old ? now : old;
        a[r] = exp2_native(old - joint);
        c[r] = exp2_native(now - joint);
        all.maximum[m][r] = joint;
        all.weight[m][r] = fma(more.weight[m][r], c[r], all.weight[m][r] * a[r]);
      }
      ATLAS_UNROLL
      for (uint32_t u = 0; u < Form::kUnits; ++u) {
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 8; ++i) {
          const uint32_t r = cell_row(i);
          float& sum = all.sum[m][u].r[i];
          if (sees[r]) sum = fma(more.sum[m][u].r[i], c[r], sum * a[r]);
        }
      }
    }
  }

  /// Writes the results of the rows that `which(v)` names.
  template <typename Which>
  ATLAS_DEVICE void write_out(const WalkState<Form>& state, const Which& which) const {
    each_cell(state, [&](uint32_t v, uint32_t element, float sum, uint32_t m, uint32_t r) {
      if (!which(v)) return;
      const uint32_t at = tile_.first + v;
      float* out = p_.out + (uint64_t{tile_.first_row} + at / tile_.group) * p_.out_stride +
                   (tile_.kv_head * tile_.group + at % tile_.group) * uint64_t{p_.head_dim};
      device::store(out + element, device::divide(sum, state.weight[m][r]));
    });
  }

  /// Leaves one block's state of the rows that see it, and more than the first block, for the
  /// merge.
  ATLAS_DEVICE void write_partials(const WalkState<Form>& state, uint32_t block) const {
    const auto needs = [&](uint32_t v) {
      const uint32_t places = tile_.places(v);
      return places > kGqaBlockTokens && places > block * kGqaBlockTokens;
    };
    each_cell(state, [&](uint32_t v, uint32_t element, float sum, uint32_t, uint32_t) {
      if (needs(v)) device::store(partial(v, block) + element, sum);
    });
    if (first_unit_ != 0 || !leads_rows()) return;
    ATLAS_UNROLL
    for (uint32_t m = 0; m < Form::kOwnTiles; ++m) {
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kLaneRows; ++r) {
        const uint32_t v = (first_tile_ + m) * 16 + lane_row(r);
        if (!needs(v)) continue;
        device::store_as<device::Floats2>(partial(v, block) + dims_,
                                          {{state.maximum[m][r], state.weight[m][r]}});
      }
    }
  }

 private:
  ATLAS_DEVICE float* partial(uint32_t v, uint32_t block) const {
    const uint32_t at = tile_.first + v + zero_;
    const uint64_t row = uint64_t{tile_.first_row} + at / tile_.group;
    const uint64_t head = tile_.kv_head * tile_.group + at % tile_.group;
    return p_.partials + ((row * p_.heads + head) * p_.max_blocks + block) *
                             attention_partial_floats(p_.head_dim);
  }

  /// Scores of the warp's places for all query rows.
  ATLAS_DEVICE void score(uint32_t block, uint32_t own, uint32_t seen,
                          TileSums (&scores)[Form::kTiles][Form::kGroups]) {
    // Groups of 16 keys, and chunks of 32 elements of them, whose loads are under way together; a
    // WMMA lane has twice the registers of a key.
    constexpr uint32_t kMost = kLaneRows == 2 ? 4 : 2;
    constexpr uint32_t kGroupsAhead = Form::kGroups < kMost ? Form::kGroups : kMost;
    constexpr uint32_t kChunksAhead = kMost / kGroupsAhead;
    places_.begin_keys(block, own);
    ATLAS_ROLLED
    for (uint32_t begin = 0; begin < dims_ / 32; begin += kChunksAhead) {
      ATLAS_UNROLL
      for (uint32_t first = 0; first < Form::kGroups; first += kGroupsAhead) {
        KeyChunk keys[kChunksAhead][kGroupsAhead];
        ATLAS_UNROLL
        for (uint32_t c = 0; c < kChunksAhead; ++c) {
          ATLAS_UNROLL
          for (uint32_t g = 0; g < kGroupsAhead; ++g) {
            keys[c][g] = load_keys([&](uint32_t i) -> const uint8_t* {
              const uint32_t place = own + 16 * (first + g) + i;
              const bool is_there = place < seen && begin + c < dims_ / 32;
              return is_there ? places_.key(place) + (begin + c) * 512 : nullptr;
            });
          }
        }
        ATLAS_UNROLL
        for (uint32_t m = 0; m < Form::kTiles; ++m) {
          if (m * 16 >= tile_.count) continue;
          ATLAS_UNROLL
          for (uint32_t c = 0; c < kChunksAhead; ++c) {
            if (begin + c >= dims_ / 32) continue;
            const RowChunk rows = load_rows(queries_, m * 16 + zero_, pitch_, begin + c);
            ATLAS_UNROLL
            for (uint32_t g = 0; g < kGroupsAhead; ++g) {
              multiply_keys(scores[m][first + g], rows, keys[c][g]);
            }
          }
        }
      }
    }
  }

  /// Scales scores, hides what a row does not see, and leaves the warp's maxima.
  ATLAS_DEVICE void find_maxima(uint32_t block, uint32_t own,
                                TileSums (&scores)[Form::kTiles][Form::kGroups]) const {
    using namespace device;
    const float scale = p_.scale * kLog2E;
    ATLAS_UNROLL
    for (uint32_t m = 0; m < Form::kTiles; ++m) {
      if (m * 16 >= tile_.count) continue;
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kLaneRows; ++r) {
        const uint32_t row = m * 16 + lane_row(r) + zero_;
        const uint32_t places = places_in(tile_.places(row), block);
        float largest = kLowest;
        ATLAS_UNROLL
        for (uint32_t g = 0; g < Form::kGroups; ++g) {
          ATLAS_UNROLL
          for (uint32_t i = 0; i < 8; ++i) {
            if (cell_row(i) != r) continue;
            float& s = scores[m][g].r[i];
            s = own + 16 * g + score_place(i) < places ? s * scale : kLowest;
            largest = s > largest ? s : largest;
          }
        }
        largest = over_row(largest, [](float a, float b) { return b > a ? b : a; });
        if (leads_rows()) store(warp_maxima_ + warp_index() * Form::kRows + row, largest);
      }
    }
  }

  /// Turns scores into weights, and leaves them and their sums.
  ATLAS_DEVICE void weigh(uint32_t own, TileSums (&scores)[Form::kTiles][Form::kGroups]) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t m = 0; m < Form::kTiles; ++m) {
      if (m * 16 >= tile_.count) continue;
      float maximum[kLaneRows];
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kLaneRows; ++r) {
        const uint32_t row = m * 16 + lane_row(r) + zero_;
        float largest = kLowest;
        ATLAS_UNROLL
        for (uint32_t w = 0; w < Form::kWarps; ++w) {
          const float x = load(warp_maxima_ + w * Form::kRows + row);
          largest = x > largest ? x : largest;
        }
        if (warp_index() == 0 && leads_rows()) store(maxima_ + row, largest);
        // A row that sees nothing here has weights of 0.
        maximum[r] = largest == kLowest ? 0.0f : largest;
      }
      ATLAS_UNROLL
      for (uint32_t two = 0; two < Form::kGroups; two += 2) {
        float sum[kLaneRows] = {};
        ATLAS_UNROLL
        for (uint32_t g = two; g < two + 2; ++g) {
          TileSums& weights = scores[m][g];
          ATLAS_UNROLL
          for (uint32_t i = 0; i < 8; ++i) {
            weights.r[i] = exp2_native(weights.r[i] - maximum[cell_row(i)]);
          }
          stage_weights(weights, weights_, m * 16 + zero_, own / 16 + g);
          ATLAS_UNROLL
          for (uint32_t i = 0; i < 8; ++i) sum[cell_row(i)] += weights.r[i];
        }
        ATLAS_UNROLL
        for (uint32_t r = 0; r < kLaneRows; ++r) {
          const float all = over_row(sum[r], [](float a, float b) { return a + b; });
          if (leads_rows()) {
            store(sums_ + (own / 32 + two / 2) * Form::kRows + m * 16 + lane_row(r) + zero_, all);
          }
        }
      }
    }
  }

  ATLAS_DEVICE void load_state(WalkState<Form>& state) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t m = 0; m < Form::kOwnTiles; ++m) {
      if ((first_tile_ + m) * 16 >= tile_.count) continue;
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kLaneRows; ++r) {
        const uint32_t row = (first_tile_ + m) * 16 + lane_row(r) + zero_;
        state.maximum[m][r] = load(maxima_ + row);
        float sum = load(sums_ + row);
        ATLAS_UNROLL
        for (uint32_t i = 1; i < kAttentionSums; ++i) sum += load(sums_ + i * Form::kRows + row);
        state.weight[m][r] = sum;
      }
    }
  }

  // Values of kAhead times 32 places, whose loads are under way together.
  static constexpr uint32_t kAhead = (Form::kUnits * Form::kOwnTiles > 1 ? 2 : 4) * kLaneRows / 2;
  struct ValueBatch {
    ValueChunk of[kAhead][Form::kUnits];
  };
  // Where registers are left, a block's first values come while its weights are made.
  static constexpr bool kEarlyValues = Form::kTiles == 1 && kLaneRows == 2;

  ATLAS_DEVICE void load_batch(uint32_t block, uint32_t seen, uint32_t begin,
                               ValueBatch& values) const {
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) {
      const uint32_t first = begin + 32 * j;
      if (first >= seen) continue;
      const auto from = places_.values(block, first);
      ATLAS_UNROLL
      for (uint32_t u = 0; u < Form::kUnits; ++u) {
        const uint32_t element = (first_unit_ + u) * 16;
        values.of[j][u] = load_values([&](uint32_t quad) -> const uint8_t* {
          const bool there = first + 4 * quad < seen && element < dims_;
          return there ? from.quad(quad) + element * 8 : nullptr;
        });
      }
    }
  }

  /// `values`: the first batch, with kEarlyValues.
  ATLAS_DEVICE void sum_values(uint32_t block, uint32_t seen, ValueBatch& values,
                               WalkState<Form>& state) const {
    ATLAS_UNROLL
    for (uint32_t m = 0; m < Form::kOwnTiles; ++m) {
      ATLAS_UNROLL
      for (uint32_t u = 0; u < Form::kUnits; ++u) state.sum[m][u] = {};
    }
    if (first_tile_ * 16 >= tile_.count) return;
    ATLAS_ROLLED
    for (uint32_t begin = 0; begin < seen; begin += 32 * kAhead) {
      if (!kEarlyValues || begin != 0) load_batch(block, seen, begin, values);
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kAhead; ++j) {
        const uint32_t first = begin + 32 * j;
        if (first >= seen) continue;
        ATLAS_UNROLL
        for (uint32_t m = 0; m < Form::kOwnTiles; ++m) {
          if ((first_tile_ + m) * 16 >= tile_.count) continue;
          const RowChunk rows =
              load_rows(weights_, (first_tile_ + m) * 16 + zero_, kGqaBlockTokens * 2, first / 32);
          ATLAS_UNROLL
          for (uint32_t u = 0; u < Form::kUnits; ++u) {
            multiply_values(state.sum[m][u], rows, values.of[j][u]);
          }
        }
      }
    }
  }

  const GqaAttendParams& p_;
  const QueryTile& tile_;
  Places places_;
  const uint32_t dims_, pitch_;
  uint32_t first_unit_, first_tile_, zero_ = 0;
  uint8_t *weights_, *queries_;
  float *warp_maxima_, *maxima_, *sums_;
};

/// All or some blocks of a tile: their states for the merge where the step is split, else results.
template <typename Form, typename Places>
ATLAS_DEVICE void attend(const GqaAttendParams& p, const QueryTile& tile, const Places& places,
                         uint32_t part) {
  const uint32_t blocks = (tile.all_places() + kGqaBlockTokens - 1) / kGqaBlockTokens;
  const uint32_t each = (blocks + p.tasks - 1) / p.tasks;
  const uint32_t begin = part * each, end = begin + each < blocks ? begin + each : blocks;
  if (begin >= end) return;
  AttentionWalk<Form, Places> walk(p, tile, places);
  walk.begin(begin);
  WalkState<Form> all, now;
  ATLAS_ROLLED
  for (uint32_t block = begin; block < end; ++block) {
    walk.block(block, now);
    if (p.split_rows == 0 || block == 0) walk.join(all, now, block);
    if (p.split_rows != 0) walk.write_partials(now, block);
  }
  // Results of what no merge follows: of all rows, or of those that see one block.
  if (p.split_rows != 0 && begin != 0) return;
  walk.write_out(
      all, [&](uint32_t v) { return p.split_rows == 0 || tile.places(v) <= kGqaBlockTokens; });
}

/// Joins the blocks' states of one query row that sees `places` places, in ascending order.
ATLAS_DEVICE void merge_row(const GqaAttendParams& p, uint64_t row, uint64_t head,
                            uint32_t places) {
  using namespace device;
  constexpr uint32_t kAhead = 8;
  const uint32_t blocks = (places + kGqaBlockTokens - 1) / kGqaBlockTokens;
  const uint32_t stride = attention_partial_floats(p.head_dim), dims = attention_dims(p.head_dim);
  const float* from = p.partials + (row * p.heads + head) * p.max_blocks * stride;
  auto* factors = shared_memory<Floats2>() + warp_index() * kWarpLanes;
  for (uint32_t base = 0; base < p.head_dim; base += kAttentionMergeThreads) {
    const uint32_t element = base + thread_index();
    float maximum = kLowest, weight = 0.0f, sum = 0.0f;
    for (uint32_t first = 0; first < blocks; first += kWarpLanes) {
      const uint32_t count = blocks - first < kWarpLanes ? blocks - first : kWarpLanes;
      // A lane a block: the maximum up to it, and the factors of what is before it and of itself.
      Floats2 own{{kLowest, 0.0f}};
      if (lane_index() < count) {
        own = load_as<Floats2>(from + uint64_t{first + lane_index()} * stride + dims);
      }
      float joint = own.f[0];
      for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
        const float other = shuffle_up(joint, apart);
        joint = other > joint ? other : joint;
      }
      joint = maximum > joint ? maximum : joint;
      const float below = shuffle_up(joint, 1);
      const float before = lane_index() == 0 ? maximum : below;
      // The first block is taken as it is.
      const bool is_first = first + lane_index() == 0;
      const float a = is_first ? 0.0f : exp2_native(before - joint);
      const float c = is_first ? 1.0f : exp2_native(own.f[0] - joint);
      maximum = shuffle(joint, kWarpLanes - 1);
      warp_barrier();  // the factors before have been read
      store(factors + lane_index(), Floats2{{a, c}});
      warp_barrier();  // and are there for all lanes
      for (uint32_t begin = 0; begin < count; begin += kAhead) {
        float values[kAhead], weights[kAhead];
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kAhead; ++i) {
          if (begin + i >= count) continue;
          const float* at = from + uint64_t{first + begin + i} * stride;
          weights[i] = load(at + dims + 1);
          if (element < p.head_dim) values[i] = load(at + element);
        }
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kAhead; ++i) {
          if (begin + i >= count) continue;
          const Floats2 factor = load(factors + begin + i);
          const bool as_is = first + begin + i == 0;
          weight = as_is ? weights[i] : fma(weights[i], factor.f[1], weight * factor.f[0]);
          if (element < p.head_dim) {
            sum = as_is ? values[i] : fma(values[i], factor.f[1], sum * factor.f[0]);
          }
        }
      }
    }
    if (element < p.head_dim) {
      store(p.out + row * p.out_stride + head * p.head_dim + element, divide(sum, weight));
    }
  }
}

}  // namespace atlas::kernels
