#include "tools/atlas-quantize/ldlq.h"

#include <algorithm>
#include <mutex>

#include "tools/atlas-quantize/parallel.h"
#include "tools/atlas-quantize/products.h"

namespace atlas::quantize {

namespace {

/// Columns of a thread's piece: tiles that are searched at once, fewer where threads would be idle.
uint64_t piece_columns(uint64_t columns, uint32_t threads) {
  uint64_t tiles = TileSearch::kTiles;
  while (tiles > 1 && columns / (tiles * kTileSide) < threads) tiles /= 2;
  return tiles * kTileSide;
}

/// Aims of a block of 16 rows, [16][width], for columns from `begin` on.
void aim(const Matrix& weight, const Matrix* factor, const std::vector<float>& errors,
         uint64_t block, uint64_t begin, uint64_t width, float* aims) {
  const uint64_t first = block * kTileSide;
  for (uint64_t r = 0; r < kTileSide; ++r) {
    std::copy_n(weight.row(first + r).begin() + static_cast<ptrdiff_t>(begin), width,
                aims + r * width);
  }
  if (factor == nullptr) return;
  for (uint64_t j = first + kTileSide; j < weight.rows; ++j) {
    const float* l = factor->row(j).data() + first;
    for (uint64_t r = 0; r < kTileSide; ++r) {
      add_scaled(l[r], &errors[j * width], aims + r * width, width);
    }
  }
}

/// All blocks of a piece's columns.
void round_columns(const Matrix& weight, const Matrix* factor, const SearchTable& table,
                   TileSearch& search, uint64_t begin, uint64_t width, TrellisWeight& out) {
  const auto& places = tile_places();
  const uint32_t bits = table.bits();
  const uint64_t tiles = width / kTileSide, row_tiles = weight.columns / kTileSide;
  std::vector<float> targets(tiles * kTileWeights);
  std::vector<uint16_t> states(tiles * kTileWeights);
  feed_back(weight, factor, begin, width, [&](uint64_t block, const float* aims, float* decoded) {
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      for (uint32_t t = 0; t < kTileWeights; ++t) {
        targets[tile * kTileWeights + t] =
            aims[places[t].row * width + tile * kTileSide + places[t].column];
      }
    }
    search.search(targets.data(), states.data(), static_cast<uint32_t>(tiles));
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      const uint16_t* tile_states = &states[tile * kTileWeights];
      pack_tile(tile_states, bits,
                &out.packed[(block * row_tiles + begin / kTileSide + tile) * 8 * bits]);
      for (uint32_t t = 0; t < kTileWeights; ++t) {
        const uint64_t c = tile * kTileSide + places[t].column;
        const float value = table.values()[tile_states[t]];
        decoded[places[t].row * width + c] = value;
        out.decoded.at(block * kTileSide + places[t].row, begin + c) = value;
      }
    }
  });
}

/// A search that no other thread uses meanwhile.
class SearchPool {
 public:
  explicit SearchPool(const SearchTable& table) : table_(table) {}
  std::unique_ptr<TileSearch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<TileSearch>(table_);
    auto search = std::move(free_.back());
    free_.pop_back();
    return search;
  }
  void give_back(std::unique_ptr<TileSearch> search) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(search));
  }

 private:
  const SearchTable& table_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<TileSearch>> free_;
};

}  // namespace

void feed_back(const Matrix& weight, const Matrix* factor, uint64_t begin, uint64_t width,
               const RoundBlock& round) {
  std::vector<float> errors(weight.rows * width), aims(kTileSide * width);
  std::vector<float> decoded(kTileSide * width);
  for (uint64_t block = weight.rows / kTileSide; block-- > 0;) {
    aim(weight, factor, errors, block, begin, width, aims.data());
    round(block, aims.data(), decoded.data());
    for (uint64_t r = 0; r < kTileSide; ++r) {
      const float* row = weight.row(block * kTileSide + r).data() + begin;
      float* error = &errors[(block * kTileSide + r) * width];
      for (uint64_t c = 0; c < width; ++c) error[c] = row[c] - decoded[r * width + c];
    }
  }
}

TrellisWeight ldlq(const Matrix& weight, const Matrix* factor, const SearchTable& table,
                   uint32_t threads, const std::function<void(double)>& on_part) {
  TrellisWeight out;
  out.decoded = Matrix(weight.rows, weight.columns);
  out.packed.resize(weight.rows / kTileSide * (weight.columns / kTileSide) * 8 * table.bits());
  SearchPool pool(table);
  const uint64_t width = piece_columns(weight.columns, threads);
  const uint64_t pieces = (weight.columns + width - 1) / width;
  std::mutex mutex;
  uint64_t done = 0;
  for_each_piece(pieces, threads, [&](uint64_t piece) {
    const uint64_t begin = piece * width;
    auto search = pool.take();
    round_columns(weight, factor, table, *search, begin, std::min(width, weight.columns - begin),
                  out);
    pool.give_back(std::move(search));
    const std::lock_guard lock(mutex);
    ++done;
    if (on_part) on_part(static_cast<double>(done) / static_cast<double>(pieces));
  });
  return out;
}

double sample_error(const Matrix& weight, double scale, const SearchTable& table, uint64_t most,
                    uint32_t threads) {
  const auto& places = tile_places();
  const uint64_t row_tiles = weight.columns / kTileSide;
  const uint64_t tiles = weight.rows / kTileSide * row_tiles;
  constexpr uint32_t kGroup = TileSearch::kTiles;
  const uint64_t groups = std::max<uint64_t>(1, std::min(most, tiles) / kGroup);
  std::vector<double> errors(groups);
  SearchPool pool(table);
  for_each_piece(groups, threads, [&](uint64_t group) {
    float targets[kGroup * kTileWeights];
    uint16_t states[kGroup * kTileWeights];
    for (uint64_t i = 0; i < kGroup; ++i) {
      // Steps of an odd number touch all rows and columns of tiles.
      const uint64_t tile = (kGroup * group + i) * (tiles / (kGroup * groups) | 1) % tiles;
      const uint64_t first_row = tile / row_tiles * kTileSide;
      const uint64_t first_column = tile % row_tiles * kTileSide;
      for (uint32_t t = 0; t < kTileWeights; ++t) {
        targets[i * kTileWeights + t] = static_cast<float>(
            scale * weight.at(first_row + places[t].row, first_column + places[t].column));
      }
    }
    auto search = pool.take();
    search->search(targets, states, kGroup);
    pool.give_back(std::move(search));
    for (uint32_t i = 0; i < kGroup * kTileWeights; ++i) {
      const double apart = (double{table.values()[states[i]]} - targets[i]) / scale;
      errors[group] += apart * apart;
    }
  });
  double sum = 0;
  for (const double error : errors) sum += error;
  return sum / static_cast<double>(groups * kGroup * kTileWeights);
}

}  // namespace atlas::quantize
