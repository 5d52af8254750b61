// The walk of sparse attention over blocks of 256 places of a list, for tiles of 16 query rows that
// share a kv head, one tile a team of warps; contract in gpu_qsa.h. In a block a team's warps
// divide the keys; then all know each row's maximum, weights stand in shared memory, and warps
// divide the elements of values. Several teams fill a multiprocessor, and walk in step, as one
// barrier serves all.
#pragma once

#include "kernels/common/gpu/attention.h"
#include "kernels/common/gpu_qsa.h"

namespace atlas::kernels {

/// A form of the walk. `kUnits`: groups of 16 elements of values that a warp sums; `kLoads`: times
/// 16 bytes of a lane that are under way together with mma.sync; `kWhole`: heads have as many
/// elements as the form serves.
template <uint32_t kWarpCount, uint32_t kUnitCount, uint32_t kTeamCount, uint32_t kLoadCount,
          bool kWholeDims = false>
struct ListForm {
  static constexpr uint32_t kWarps = kWarpCount, kUnits = kUnitCount, kTeams = kTeamCount;
  static constexpr uint32_t kRows = 16;  // query rows of a tile
  static constexpr bool kWhole = kWholeDims;
  static constexpr uint32_t kChunks = kWarps * kUnits / 2;  // of 32 elements, at most
  static constexpr uint32_t kWarpPlaces = kGqaBlockTokens / kWarps;
  static constexpr uint32_t kGroups = kWarpPlaces / 16;
  // Chunks of 32 elements of the warp's keys that are loaded together; then units, and groups of 32
  // places, of values. A WMMA lane has twice the registers of a key: there is room for one.
  static constexpr uint32_t kBatch = kLaneRows == 2 ? kLoadCount / 2 : 1;
  static constexpr uint32_t kChunksAhead = kBatch > kGroups ? kBatch / kGroups : 1;
  static constexpr uint32_t kUnitsAhead = kUnits < 2 || kLaneRows == 1 ? 1 : 2;
  static constexpr uint32_t kPlacesAhead = kBatch / kUnitsAhead;
  static_assert(kGroups % 2 == 0 && kChunks % kChunksAhead == 0 && kPlacesAhead > 0);
  static_assert(kUnits % kUnitsAhead == 0 && kGqaBlockTokens / 32 % kPlacesAhead == 0);

  ATLAS_DEVICE static uint32_t team() { return kTeams == 1 ? 0 : device::warp_index() / kWarps; }
  /// The warp, and the thread, of its team.
  ATLAS_DEVICE static uint32_t warp() { return device::warp_index() % kWarps; }
  ATLAS_DEVICE static uint32_t thread() { return device::thread_index() % (32 * kWarps); }
};

/// What a tile attends to: blocks of positions, then the positions from `tail` on; or all
/// positions.
struct PlaceList {
  const uint32_t* blocks;  // null: everything, in order
  uint32_t count, ratio, tail;

  ATLAS_DEVICE uint32_t position(uint32_t place) const {
    if (blocks == nullptr) return place;
    const uint32_t block = place / ratio;
    if (block >= count) return tail + (place - count * ratio);
    return device::load(blocks + block) * ratio + place % ratio;
  }
};

/// Where two quads stand.
struct alignas(16) TwoPlaces {
  const uint8_t* at[2];
};

/// What a team keeps in shared memory, so that it takes no registers: its tile.
struct WalkTile {
  QueryTile tile;
  PlaceList list;
  const uint32_t* table;  // pages of the sequence
};
static_assert(sizeof(WalkTile) <= kQsaTileBytes);

template <typename Form>
class ListWalk {
 public:
  /// `tile`: without query rows, a team walks in step and sees nothing.
  ATLAS_DEVICE ListWalk(const QsaAttendParams& p, const QueryTile& tile) : p_(p) {
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kLaneRows; ++r) row_places_[r] = tile.places(lane_row(r));
    all_places_ = tile.count == 0 ? 0 : tile.all_places();
    constexpr AttentionForm kForm{"", 0, Form::kWarps, 1};
    shared_ = Form::team() * qsa_team_bytes(kForm, head_dim());
  }

  ATLAS_DEVICE uint32_t blocks() const {
    return (all_places_ + kGqaBlockTokens - 1) / kGqaBlockTokens;
  }

  /// Brings the tile and its queries to shared memory, and where the first block's places stand.
  ATLAS_DEVICE void begin(const QueryTile& tile, const PlaceList& list, uint32_t first_block) {
    using namespace device;
    const uint32_t* table = page_table(p_.control, tile.slot);
    if (Form::thread() == 0) keep_tile({tile, list, table});
    const uint32_t place = place_of(first_block);
    if (place != kNowhere) position_ = list.position(place);
    ATLAS_ROLLED
    for (uint32_t v = Form::warp(); v < Form::kRows; v += Form::kWarps) {
      const uint32_t at = tile.first + v, row = at / tile.group;
      const float* q = p_.q + (uint64_t{tile.first_row} + row) * p_.q_stride +
                       (tile.kv_head * tile.group + at % tile.group) * uint64_t{head_dim()};
      ATLAS_ROLLED
      for (uint32_t pair = lane_index(); pair < dims() / 2; pair += kWarpLanes) {
        uint32_t word = 0;
        if (v < tile.count && 2 * pair < head_dim()) {
          word = bf16_pair(load(q + 2 * pair), load(q + 2 * pair + 1));
        }
        store_as<uint32_t>(queries() + fragment_offset(v, 2 * pair), word);
      }
    }
    if (place != kNowhere) page_ = load(table + position_ / kGqaPageTokens);
    keep(first_block);
    block_barrier();  // queries are written before all warps read them
  }

  /// One block: joined to those before it, and left for the merge where the step is split. All
  /// threads of the block come here.
  ATLAS_DEVICE void block(uint32_t block) {
    using namespace device;
    const uint32_t before = block * kGqaBlockTokens;
    const uint32_t left = all_places_ > before ? all_places_ - before : 0;
    const uint32_t seen = left < kGqaBlockTokens ? left : kGqaBlockTokens;
    const uint32_t own = Form::warp() * Form::kWarpPlaces;  // the warp's first place
    TileSums scores[Form::kGroups] = {};
    look_ahead(block + 1);
    if (own + Form::kWarpPlaces <= seen) {
      score(block, own, scores);
    } else if (own < seen) {
      score_part(block, own, seen - own, scores);
    }
    // The first values come while weights are made.
    ValueBatch values;
    if (seen != 0) load_batch(block, 0, 0, values);
    look_up();
    find_maxima(before + own, scores);
    block_barrier();  // all warps' maxima are written, and weights of the block before are read
    keep(block + 1);
    weigh(own, scores);
    block_barrier();  // weights and their sums are written before all warps read them
    const Joint joint = join_rows(block);
    ATLAS_UNROLL
    for (uint32_t u = 0; u < Form::kUnits; u += Form::kUnitsAhead) {
      TileSums more[Form::kUnitsAhead] = {};
      sum_values(block, seen, u, values, more);
      ATLAS_UNROLL
      for (uint32_t i = 0; i < Form::kUnitsAhead; ++i) {
        if (Form::kTeams == 1 && p_.split_rows != 0) write_partials(more[i], u + i, block);
        join_sums(sum_[u + i], more[i], joint);
      }
    }
    if (Form::kTeams == 1 && p_.split_rows != 0) write_partial_rows(joint, block);
  }

  /// Writes the results of the rows that `which(places)` names, by what they see.
  template <typename Which>
  ATLAS_DEVICE void write_out(const Which& which) const {
    using namespace device;
    const QueryTile& tile = kept()->tile;
    const uint32_t group = load(&tile.group);
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kLaneRows; ++r) {
      if (row_places_[r] == 0 || !which(row_places_[r])) continue;
      const uint32_t at = load(&tile.first) + lane_row(r);
      float* out = p_.out + (uint64_t{load(&tile.first_row)} + at / group) * p_.out_stride +
                   (load(&tile.kv_head) * group + at % group) * uint64_t{head_dim()};
      each_element(r, [&](uint32_t u, uint32_t i, uint32_t element) {
        store(out + element, divide(sum_[u].r[i], weight_[r]));
      });
    }
  }

 private:
  /// Of a lane's rows: maximum and sum of weights of a block, and the factors by which the blocks
  /// before and it are joined.
  struct Joint {
    float maximum[kLaneRows], weight[kLaneRows], a[kLaneRows], c[kLaneRows];
    bool sees[kLaneRows];
    bool is_first;
  };

  /// What a warp's lane has of its row r.
  template <typename What>
  ATLAS_DEVICE void each_element(uint32_t r, const What& what) const {
    ATLAS_UNROLL
    for (uint32_t u = 0; u < Form::kUnits; ++u) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t element = (first_unit() + u) * 16 + value_element(i);
        if (cell_row(i) == r && element < head_dim()) what(u, i, element);
      }
    }
  }

  ATLAS_DEVICE uint32_t head_dim() const { return Form::kWhole ? 32 * Form::kChunks : p_.head_dim; }
  ATLAS_DEVICE uint32_t dims() const { return attention_dims(head_dim()); }
  ATLAS_DEVICE uint32_t pitch() const { return attention_query_pitch(head_dim()); }
  ATLAS_DEVICE static uint32_t first_unit() { return Form::warp() * Form::kUnits; }

  // Shared memory of the team, as qsa_team_bytes has it.
  ATLAS_DEVICE uint8_t* weights() const { return device::shared_memory<uint8_t>(shared_); }
  ATLAS_DEVICE float* warp_maxima() const {
    return reinterpret_cast<float*>(weights() + Form::kRows * kGqaBlockTokens * 2);
  }
  ATLAS_DEVICE float* maxima() const { return warp_maxima() + Form::kWarps * Form::kRows; }
  ATLAS_DEVICE float* sums() const { return maxima() + Form::kRows; }
  ATLAS_DEVICE uint8_t* queries() const {
    return reinterpret_cast<uint8_t*>(sums() + kAttentionSums * Form::kRows);
  }
  /// Of a block: where keys stand, then where values do.
  ATLAS_DEVICE uint64_t* quads(uint32_t block) const {
    return reinterpret_cast<uint64_t*>(queries() + Form::kRows * pitch()) +
           block % 2 * (2 * kQsaQuads);
  }
  ATLAS_DEVICE WalkTile* kept() const {
    return reinterpret_cast<WalkTile*>(quads(0) + 4 * kQsaQuads);
  }

  ATLAS_DEVICE void keep_tile(const WalkTile& from) const {
    using namespace device;
    WalkTile* to = kept();
    store(&to->tile.kv_head, from.tile.kv_head);
    store(&to->tile.group, from.tile.group);
    store(&to->tile.first_row, from.tile.first_row);
    store(&to->tile.first, from.tile.first);
    store(&to->list.blocks, from.list.blocks);
    store(&to->list.count, from.list.count);
    store(&to->list.tail, from.list.tail);
    store(&to->table, from.table);
  }

  // Where the four places of each quad of a block stand is looked up a block ahead, by the first
  // threads of the team for all others. A quad that the tile does not see stands where the first
  // does: its weights are 0.
  ATLAS_DEVICE uint32_t place_of(uint32_t block) const {
    const uint32_t first = block * kGqaBlockTokens, place = first + 4 * Form::thread();
    if (Form::thread() >= kQsaQuads || first >= all_places_) return kNowhere;
    return place < all_places_ ? place : first;
  }
  ATLAS_DEVICE void look_ahead(uint32_t block) {
    using namespace device;
    const uint32_t place = place_of(block);
    position_ = kNowhere;
    if (place == kNowhere) return;
    const PlaceList& list = kept()->list;
    position_ =
        PlaceList{load(&list.blocks), load(&list.count), p_.ratio, load(&list.tail)}.position(
            place);
  }
  ATLAS_DEVICE void look_up() {
    using namespace device;
    if (position_ != kNowhere) page_ = load(load(&kept()->table) + position_ / kGqaPageTokens);
  }
  ATLAS_DEVICE void keep(uint32_t block) const {
    using namespace device;
    if (position_ == kNowhere) return;
    const uint32_t place = position_ % kGqaPageTokens;
    const auto page = reinterpret_cast<uint64_t>(
        p_.pages + block_index<1>() * attention_head_bytes(head_dim()) + page_ * p_.page_stride);
    uint64_t* to = quads(block);
    store(to + key_slot(Form::thread()), page + attention_key_offset(place, dims()));
    store(to + kQsaQuads + Form::thread(), page + attention_value_offset(place, dims()));
  }

  struct KeyBatch {
    KeyChunk of[Form::kChunksAhead][Form::kGroups];
  };

  /// Where a quad's keys are told: of four quads, those that a lane of mma.sync loads of stand
  /// together.
  static constexpr uint32_t key_slot(uint32_t quad) {
    return (quad & ~3u) | (quad & 1) << 1 | (quad >> 1 & 1);
  }
  /// The quads of the lane's keys of 16 places that are told from `from` on.
  ATLAS_DEVICE static void find_keys(const uint64_t* from, const uint8_t* (&at)[kLaneKeys]) {
    from += key_slot(lane_key(0) / 4);
    if constexpr (kLaneKeys == 2) {
      const auto two = device::load_as<TwoPlaces>(from);
      at[0] = two.at[0];
      at[1] = two.at[1];
    } else {
      at[0] = device::load_as<const uint8_t*>(from);
    }
  }

  /// Keys of the warp's places, kChunksAhead chunks of them from chunk `begin` on. Where they stand
  /// is read anew each time: that takes less than to carry and move it.
  ATLAS_DEVICE void load_keys_of(const uint64_t* from, uint32_t begin, KeyBatch& keys) const {
    const uint32_t offset = lane_key(0) % 4 * 64 + lane_key_offset() + begin * 512;
    ATLAS_UNROLL
    for (uint32_t g = 0; g < Form::kGroups; ++g) {
      const uint8_t* at[kLaneKeys];
      find_keys(from + 4 * g, at);
      ATLAS_UNROLL
      for (uint32_t n = 0; n < kLaneKeys; ++n) at[n] += offset;
      ATLAS_UNROLL
      for (uint32_t c = 0; c < Form::kChunksAhead; ++c) {
        if (begin + c < dims() / 32) keys.of[c][g] = load_keys_at(at, c * 512);
      }
    }
  }

  /// Scores of the warp's places for all query rows, where the tile sees all of them.
  ATLAS_DEVICE void score(uint32_t block, uint32_t own, TileSums (&scores)[Form::kGroups]) const {
    const uint64_t* from = quads(block) + own / 4;
    const uint8_t* rows_at = queries() + lane_fragment_offset();
    KeyBatch keys;
    load_keys_of(from, 0, keys);
    ATLAS_ROLLED
    for (uint32_t begin = 0; begin < dims() / 32; begin += Form::kChunksAhead) {
      ATLAS_UNROLL
      for (uint32_t c = 0; c < Form::kChunksAhead; ++c) {
        if (begin + c >= dims() / 32) continue;
        const RowChunk rows = load_fragments(rows_at, begin + c);
        ATLAS_UNROLL
        for (uint32_t g = 0; g < Form::kGroups; ++g) {
          multiply_keys(scores[g], rows, keys.of[c][g]);
        }
      }
      const uint32_t next = begin + Form::kChunksAhead;
      if (next < dims() / 32) load_keys_of(from, next, keys);
    }
  }

  /// The same where it sees `left` of them: group by group, as few have any. To places of the last
  /// quad that it does not see nothing may ever have been written: the quad's first key is read.
  ATLAS_DEVICE void score_part(uint32_t block, uint32_t own, uint32_t left,
                               TileSums (&scores)[Form::kGroups]) const {
    constexpr uint32_t kAhead = kLaneRows;
    const uint8_t* rows_at = queries() + lane_fragment_offset();
    ATLAS_UNROLL
    for (uint32_t g = 0; g < Form::kGroups; ++g) {
      if (16 * g >= left) continue;
      const uint8_t* at[kLaneKeys];
      find_keys(quads(block) + own / 4 + 4 * g, at);
      ATLAS_UNROLL
      for (uint32_t n = 0; n < kLaneKeys; ++n) {
        const uint32_t place = 16 * g + lane_key(n);
        at[n] += lane_key_offset() + (place < left ? place % 4 * 64 : 0);
      }
      ATLAS_ROLLED
      for (uint32_t begin = 0; begin < dims() / 32; begin += kAhead) {
        KeyChunk keys[kAhead];
        ATLAS_UNROLL
        for (uint32_t c = 0; c < kAhead; ++c) {
          if (begin + c < dims() / 32) keys[c] = load_keys_at(at, c * 512);
        }
        ATLAS_UNROLL
        for (uint32_t c = 0; c < kAhead; ++c) {
          if (begin + c >= dims() / 32) continue;
          multiply_keys(scores[g], load_fragments(rows_at, begin + c), keys[c]);
        }
        ATLAS_UNROLL
        for (uint32_t n = 0; n < kLaneKeys; ++n) at[n] += kAhead * 512;
      }
    }
  }

  /// Scales scores, hides what a row does not see, and leaves the warp's maxima. `first`: the
  /// warp's first place.
  ATLAS_DEVICE void find_maxima(uint32_t first, TileSums (&scores)[Form::kGroups]) const {
    using namespace device;
    const float scale = p_.scale * kLog2E;
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kLaneRows; ++r) {
      float largest = kLowest;
      ATLAS_UNROLL
      for (uint32_t g = 0; g < Form::kGroups; ++g) {
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 8; ++i) {
          if (cell_row(i) != r) continue;
          float& s = scores[g].r[i];
          s = first + 16 * g + score_place(i) < row_places_[r] ? s * scale : kLowest;
          largest = s > largest ? s : largest;
        }
      }
      largest = over_row(largest, [](float a, float b) { return b > a ? b : a; });
      if (leads_rows()) {
        store(warp_maxima() + Form::warp() * Form::kRows + lane_row(r), largest);
      }
    }
  }

  /// Turns scores into weights, and leaves them and their sums.
  ATLAS_DEVICE void weigh(uint32_t own, TileSums (&scores)[Form::kGroups]) const {
    using namespace device;
    float maximum[kLaneRows];
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kLaneRows; ++r) {
      float largest = kLowest;
      ATLAS_UNROLL
      for (uint32_t w = 0; w < Form::kWarps; ++w) {
        const float x = load(warp_maxima() + w * Form::kRows + lane_row(r));
        largest = x > largest ? x : largest;
      }
      if (Form::warp() == 0 && leads_rows()) store(maxima() + lane_row(r), largest);
      // A row that sees nothing here has weights of 0.
      maximum[r] = largest == kLowest ? 0.0f : largest;
    }
    ATLAS_UNROLL
    for (uint32_t two = 0; two < Form::kGroups; two += 2) {
      float sum[kLaneRows] = {};
      ATLAS_UNROLL
      for (uint32_t g = two; g < two + 2; ++g) {
        TileSums& of = scores[g];
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 8; ++i) {
          of.r[i] = exp2_native(of.r[i] - maximum[cell_row(i)]);
        }
        stage_fragments(of, weights(), own / 16 + g);
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 8; ++i) sum[cell_row(i)] += of.r[i];
      }
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kLaneRows; ++r) {
        const float all = over_row(sum[r], [](float a, float b) { return a + b; });
        if (leads_rows()) store(sums() + (own / 32 + two / 2) * Form::kRows + lane_row(r), all);
      }
    }
  }

  /// Maxima and sums of weights of a block, which are joined to those of the blocks before.
  ATLAS_DEVICE Joint join_rows(uint32_t block) {
    using namespace device;
    Joint joint;
    joint.is_first = block == 0;
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kLaneRows; ++r) {
      const float now = load(maxima() + lane_row(r));
      float weight = load(sums() + lane_row(r));
      ATLAS_UNROLL
      for (uint32_t i = 1; i < kAttentionSums; ++i) {
        weight += load(sums() + i * Form::kRows + lane_row(r));
      }
      joint.maximum[r] = now;
      joint.weight[r] = weight;
      joint.sees[r] = row_places_[r] > block * kGqaBlockTokens;
      if (block == 0) {
        maximum_[r] = now;
        weight_[r] = weight;
      } else if (joint.sees[r]) {
        const float both = now > maximum_[r] ? now : maximum_[r];
        joint.a[r] = exp2_native(maximum_[r] - both);
        joint.c[r] = exp2_native(now - both);
        maximum_[r] = both;
        weight_[r] = fma(weight, joint.c[r], weight_[r] * joint.a[r]);
      }
    }
    return joint;
  }
  ATLAS_DEVICE static void join_sums(TileSums& all, const TileSums& more, const Joint& joint) {
    if (joint.is_first) {
      all = more;
      return;
    }
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t r = cell_row(i);
      if (joint.sees[r]) all.r[i] = device::fma(more.r[i], joint.c[r], all.r[i] * joint.a[r]);
    }
  }

  struct ValueBatch {
    ValueChunk of[Form::kPlacesAhead][Form::kUnitsAhead];
  };
  /// Values of kPlacesAhead times 32 places from `begin` on, of kUnitsAhead units from the warp's
  /// unit u on, where heads have them.
  ATLAS_DEVICE void load_batch(uint32_t block, uint32_t begin, uint32_t u,
                               ValueBatch& values) const {
    if ((first_unit() + u) * 16 >= dims()) return;
    const uint32_t offset = (first_unit() + u) * 128 + lane_value_offset();
    const uint64_t* from = quads(block) + kQsaQuads + begin / 4 + lane_quad(0);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < Form::kPlacesAhead; ++j) {
      const uint8_t* at[kLaneQuads];
      ATLAS_UNROLL
      for (uint32_t s = 0; s < kLaneQuads; s += 2) {
        const auto two = device::load_as<TwoPlaces>(from + 8 * j + s);
        at[s] = two.at[0] + offset;
        at[s + 1] = two.at[1] + offset;
      }
      ATLAS_UNROLL
      for (uint32_t i = 0; i < Form::kUnitsAhead; ++i)
        values.of[j][i] = load_values_at(at, 128 * i);
    }
  }

  /// Value sums of a block, of kUnitsAhead units from the warp's unit u on. `values`: the first
  /// batch of them, and then that of the units behind them.
  ATLAS_DEVICE void sum_values(uint32_t block, uint32_t seen, uint32_t u, ValueBatch& values,
                               TileSums (&sums)[Form::kUnitsAhead]) const {
    const uint8_t* rows_at = weights() + lane_fragment_offset();
    constexpr uint32_t kStep = 32 * Form::kPlacesAhead;
    if ((first_unit() + u) * 16 >= dims()) return;
    ATLAS_ROLLED
    for (uint32_t begin = 0; begin < seen; begin += kStep) {
      ATLAS_UNROLL
      for (uint32_t j = 0; j < Form::kPlacesAhead; ++j) {
        if (begin + 32 * j >= seen) continue;
        const RowChunk rows = load_fragments(rows_at, begin / 32 + j);
        ATLAS_UNROLL
        for (uint32_t i = 0; i < Form::kUnitsAhead; ++i) {
          multiply_values(sums[i], rows, values.of[j][i]);
        }
      }
      const bool more = begin + kStep < seen;
      const uint32_t next = more ? u : u + Form::kUnitsAhead;
      if (next < Form::kUnits) load_batch(block, more ? begin + kStep : 0, next, values);
    }
  }

  /// Rows that see the block, and more than the first one: what a merge needs of it.
  ATLAS_DEVICE bool needs(uint32_t r, uint32_t block) const {
    return row_places_[r] > kGqaBlockTokens && row_places_[r] > block * kGqaBlockTokens;
  }
  ATLAS_DEVICE float* partial(uint32_t r, uint32_t block) const {
    using namespace device;
    const QueryTile& tile = kept()->tile;
    const uint32_t at = load(&tile.first) + lane_row(r), group = load(&tile.group);
    const uint64_t row = uint64_t{load(&tile.first_row)} + at / group;
    const uint64_t head = load(&tile.kv_head) * group + at % group;
    return p_.partials +
           ((row * p_.heads + head) * p_.max_blocks + block) * attention_partial_floats(head_dim());
  }
  ATLAS_DEVICE void write_partials(const TileSums& sum, uint32_t u, uint32_t block) const {
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kLaneRows; ++r) {
      if (!needs(r, block)) continue;
      float* to = partial(r, block);
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t element = (first_unit() + u) * 16 + value_element(i);
        if (cell_row(i) == r && element < head_dim()) device::store(to + element, sum.r[i]);
      }
    }
  }
  ATLAS_DEVICE void write_partial_rows(const Joint& joint, uint32_t block) const {
    if (first_unit() != 0 || !leads_rows()) return;
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kLaneRows; ++r) {
      if (!needs(r, block)) continue;
      device::store_as<device::Floats2>(partial(r, block) + dims(),
                                        {{joint.maximum[r], joint.weight[r]}});
    }
  }

  static constexpr uint32_t kNowhere = 0xffffffffu;

  const QsaAttendParams& p_;
  uint32_t shared_;  // where the team's shared memory begins
  uint32_t all_places_, row_places_[kLaneRows];
  uint32_t position_ = kNowhere, page_ = 0;
  float maximum_[kLaneRows], weight_[kLaneRows];
  TileSums sum_[Form::kUnits];
};

}  // namespace atlas::kernels
