// Measures what atlas-quantize does for EXL3: weights a second that the search for a tile's states
// handles, and whole linears with LDLQ, by the process's own time. Not a test; prints a table.
//   bench_trellis [--threads N] [--bits K] [--tiles N] [--size N] [--target AVX2]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "tests/support/cpu_targets.h"
#include "tools/atlas-quantize/exl3.h"
#include "tools/atlas-quantize/viterbi.h"

namespace atlas::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  uint32_t threads = 1, tiles = 64, size = 512;
  std::string target;
  std::vector<uint32_t> bits;
};

struct Timer {
  Clock::time_point wall = Clock::now();
  std::clock_t own = std::clock();
  double wall_seconds() const { return std::chrono::duration<double>(Clock::now() - wall).count(); }
  double own_seconds() const { return static_cast<double>(std::clock() - own) / CLOCKS_PER_SEC; }
};

std::vector<float> normal(size_t count) {
  std::vector<float> values(count);
  std::mt19937 random(1);
  std::normal_distribution<float> draw(0, 1);
  for (float& value : values) value = draw(random);
  return values;
}

void measure_search(const Options& options, uint32_t bits) {
  using quantize::kTileWeights;
  const quantize::SearchTable table(quantize::codebook_values(quantize::Codebook::kMul1), bits);
  quantize::TileSearch search(table);
  constexpr uint32_t kTiles = quantize::TileSearch::kTiles;
  const std::vector<float> targets = normal(size_t{kTileWeights} * options.tiles);
  std::vector<uint16_t> states(targets.size());
  search.search(targets.data(), states.data(), kTiles);
  const Timer timer;
  for (uint32_t tile = 0; tile + kTiles <= options.tiles; tile += kTiles) {
    const size_t at = size_t{tile} * kTileWeights;
    search.search(&targets[at], &states[at], kTiles);
  }
  const double own = timer.own_seconds(), wall = timer.wall_seconds();
  const double weights = kTileWeights * static_cast<double>(options.tiles / kTiles * kTiles);
  double error = 0;
  for (size_t i = 0; i < static_cast<size_t>(weights); ++i) {
    const double apart = double{table.values()[states[i]]} - double{targets[i]};
    error += apart * apart;
  }
  std::printf("search  %u bits  %8.1f k weights/s of own time  %8.1f k/s by the wall  mse %.5f\n",
              bits, weights / own / 1e3, weights / wall / 1e3, error / weights);
}

void measure_linear(const Options& options, uint32_t bits) {
  quantize::Matrix weight(options.size, options.size);
  weight.values = normal(weight.values.size());
  quantize::Hessian hessian(options.size);
  hessian.add(normal(size_t{4} * options.size * options.size), options.threads);
  const quantize::Moments moments{std::make_shared<const quantize::Matrix>(hessian.mean()), "full",
                                  hessian.rows()};
  const Timer timer;
  const quantize::EncodedLinear made =
      quantize::encode_exl3("m", weight, moments, {.bits = bits, .threads = options.threads});
  const double own = timer.own_seconds(), wall = timer.wall_seconds();
  const auto weights = static_cast<double>(weight.values.size());
  std::printf("linear  %u bits  %8.1f k weights/s of own time  %8.1f k/s by the wall  proxy %.3e\n",
              bits, weights / own / 1e3, weights / wall / 1e3, made.proxy_error);
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string key = arguments[i], value = arguments[i + 1];
    const auto number = static_cast<uint32_t>(std::atoi(value.c_str()));
    if (key == "--threads") options.threads = number;
    if (key == "--target") options.target = value;
    if (key == "--bits") options.bits.push_back(number);
    if (key == "--tiles") options.tiles = number;
    if (key == "--size") options.size = number;
  }
  if (options.bits.empty()) options.bits = {2, 3, 4, 6};
  return options;
}

}  // namespace
}  // namespace atlas::test

int main(int count, char** arguments) {
  using namespace atlas::test;
  const Options options = parse(count, arguments);
  for (const CpuTarget& target : cpu_targets()) {
    if (options.target != target.name) continue;
    hwy::SetSupportedTargetsForTest(target.bit);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  for (const uint32_t bits : options.bits) {
    measure_search(options, bits);
    if (options.size != 0) measure_linear(options, bits);
  }
  return 0;
}
