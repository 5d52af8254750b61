// EXL3: codebooks, search, error feedback, and whole linears read back by an independent reader.
#include "tools/atlas-quantize/exl3.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>

#include "tests/support/cpu_targets.h"
#include "tests/unit/tools/quantize/exl3_reader.h"
#include "tools/atlas-quantize/ldlq.h"
#include "tools/atlas-quantize/products.h"
#include "tools/atlas-quantize/report.h"

namespace atlas::quantize {
namespace {

Matrix normal(uint64_t rows, uint64_t columns, uint32_t seed, float scale = 1) {
  Matrix m(rows, columns);
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, scale);
  for (float& value : m.values) value = draw(random);
  return m;
}

/// Moments of inputs that are correlated: few directions carry most of them.
Moments correlated_moments(uint64_t k, uint32_t seed) {
  const Matrix directions = normal(k / 8, k, seed);
  Hessian h(k);
  std::mt19937 random(seed + 1);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> rows(4 * k * k);
  for (uint64_t r = 0; r < 4 * k; ++r) {
    for (uint64_t i = 0; i < k; ++i) rows[r * k + i] = 0.3f * draw(random);
    for (uint64_t d = 0; d < directions.rows; ++d) {
      add_scaled(draw(random), directions.row(d).data(), &rows[r * k], k);
    }
  }
  h.add(rows, 1);
  return {std::make_shared<const Matrix>(h.mean()), "full", h.rows()};
}

std::vector<uint16_t> halves(const EncodedTensor& tensor) {
  std::vector<uint16_t> out(tensor.bytes.size() / 2);
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

double search_error(const SearchTable& table, uint32_t seam, uint32_t tiles) {
  const Matrix targets = normal(tiles, kTileWeights, 11);
  TileSearch search(table, seam);
  double error = 0;
  std::vector<uint16_t> states(kTileWeights);
  for (uint32_t i = 0; i < tiles; ++i) {
    search.search(targets.row(i).data(), states.data(), 1);
    for (uint32_t t = 0; t < kTileWeights; ++t) {
      const double apart = double{table.values()[states[t]]} - double{targets.at(i, t)};
      error += apart * apart;
    }
  }
  return error / (tiles * kTileWeights);
}

SearchTable scaled_table(uint32_t bits) {
  // As the encoder's scale does: a Gaussian of variance 1 meets a codebook of about that size.
  return SearchTable(codebook_values(Codebook::kMul1), bits);
}

TEST_SUITE_BEGIN("quantize");

TEST_CASE("codebooks: every state has the value of the description") {
  const std::pair<Codebook, const char*> all[] = {
      {Codebook::kMul1, "mul1"}, {Codebook::kMcg, "mcg"}, {Codebook::k3Inst, "3inst"}};
  for (const auto& [codebook, name] : all) {
    const std::vector<float> values = codebook_values(codebook);
    uint32_t different = 0;
    for (uint32_t state = 0; state < kStates; ++state) {
      different += double{values[state]} == testing::exl3_value(name, state) ? 0 : 1;
    }
    CHECK_MESSAGE(different == 0, name);
    CHECK(*parse_codebook(name) == codebook);
  }
  const std::vector<float> mul1 = codebook_values(Codebook::kMul1);
  CHECK(std::set<float>(mul1.begin(), mul1.end()).size() == 913);
}

TEST_CASE("tiles: places are a bijection, and packed bits give the states back") {
  std::set<uint32_t> seen;
  for (const TilePlace place : tile_places()) seen.insert(place.row * 16u + place.column);
  CHECK(seen.size() == 256);
  // One set bit, by hand: with 2 bits a weight the first states are 2, 8, 32, ...
  uint16_t states[256] = {};
  for (uint32_t t = 0; t < 8; ++t) states[t] = static_cast<uint16_t>(2u << 2 * t);
  uint32_t words[16];
  pack_tile(states, 2, words);
  CHECK(words[0] == 0x80000000u);
  for (uint32_t i = 1; i < 16; ++i) CHECK(words[i] == 0);
}

TEST_CASE("search: rings are closed, for every number of bits and of tiles") {
  constexpr uint32_t kTiles = TileSearch::kTiles;
  const Matrix targets = normal(kTiles, kTileWeights, 3);
  for (uint32_t bits = 1; bits <= 8; ++bits) {
    const SearchTable table = scaled_table(bits);
    TileSearch search(table);
    uint16_t states[kTiles * kTileWeights], fewer[kTiles * kTileWeights];
    search.search(targets.values.data(), states, kTiles);
    for (uint32_t i = 0; i < kTiles; ++i) {
      const uint16_t* tile = states + i * kTileWeights;
      for (uint32_t t = 0; t < kTileWeights; ++t) {
        const uint32_t before = tile[(t + kTileWeights - 1) % kTileWeights];
        REQUIRE((before << bits & 0xffff & ~((1u << bits) - 1)) == (tile[t] & ~((1u << bits) - 1)));
      }
      // Tiles that are searched together do not see each other.
      search.search(targets.row(i).data(), fewer, kTiles - i);
      CHECK(std::equal(fewer, fewer + (kTiles - i) * kTileWeights, tile));
      std::vector<uint32_t> words(8 * bits);
      pack_tile(tile, bits, words.data());
      std::vector<uint16_t> stored(16 * bits);
      std::memcpy(stored.data(), words.data(), stored.size() * 2);
      const auto read = testing::exl3_states(stored.data(), bits);
      CHECK(std::equal(read.begin(), read.end(), tile));
    }
  }
}

TEST_CASE("search: every instruction set finds the same states") {
  const Matrix targets = normal(2, kTileWeights, 4);
  for (const uint32_t bits : {1u, 2u, 3u, 4u, 6u, 7u}) {
    const SearchTable table = scaled_table(bits);
    std::vector<uint16_t> first;
    for (const test::CpuTarget& target : test::cpu_targets()) {
      const test::ForcedTarget forced(target);
      std::vector<uint16_t> states(2 * kTileWeights);
      TileSearch(table).search(targets.values.data(), states.data(), 2);
      if (first.empty()) first = states;
      CHECK_MESSAGE(states == first, target.name << ", bits " << bits);
    }
  }
}

TEST_CASE("search: targets far away and those that are no numbers do no harm") {
  for (const uint32_t bits : {1u, 4u, 8u}) {
    const SearchTable table = scaled_table(bits);
    Matrix targets = normal(2, kTileWeights, 12);
    for (uint32_t t = 0; t < kTileWeights; t += 5) targets.at(1, t) = t % 2 == 0 ? 1e30f : -1e30f;
    targets.at(1, 7) = std::numeric_limits<float>::quiet_NaN();
    uint16_t states[2 * kTileWeights];
    TileSearch(table).search(targets.values.data(), states, 2);
    double large = 0;
    for (uint32_t t = 0; t < kTileWeights; t += 5) {
      large += (t % 2 == 0 ? 1 : -1) * table.values()[states[kTileWeights + t]] / 52.0;
    }
    CHECK(large > 1.5);  // each goes to its side
    uint16_t alone[kTileWeights];
    TileSearch(table).search(targets.row(0).data(), alone, 1);
    CHECK(std::equal(alone, alone + kTileWeights, states));
  }
}

TEST_CASE("search: more bits have smaller errors, near the format's published ones") {
  const double published[] = {0.2716, 0.0679, 0.01716, 0.00439, 0.00114, 0.00029};
  for (uint32_t bits = 1; bits <= 6; ++bits) {
    const double error = search_error(scaled_table(bits), TileSearch::kSeam, 12);
    CHECK_MESSAGE(error < 1.15 * published[bits - 1], bits);
    CHECK_MESSAGE(error > 0.85 * published[bits - 1], bits);
  }
}

TEST_CASE("search: walking over the seam alone costs next to nothing beside a whole turn") {
  for (const uint32_t bits : {2u, 4u}) {
    const SearchTable table = scaled_table(bits);
    CHECK(search_error(table, TileSearch::kSeam, 24) < 1.015 * search_error(table, 128, 24));
  }
}

TEST_CASE("block_ldl: the factor gives the matrix back") {
  const Moments moments = correlated_moments(64, 5);
  const Matrix& h = *moments.mean;
  const auto l = block_ldl(h, 0.01);
  REQUIRE_MESSAGE(l, l.error().message());
  // D = L^-1 H L^-T is block diagonal: eliminate block by block in double.
  double diagonal = 0;
  for (uint64_t i = 0; i < 64; ++i) diagonal += h.at(i, i) / 64.0;
  std::vector<double> a(64 * 64);
  for (uint64_t i = 0; i < 64; ++i) {
    for (uint64_t j = 0; j < 64; ++j) a[i * 64 + j] = h.at(i, j) + (i == j ? 0.01 * diagonal : 0);
  }
  for (uint64_t j = 0; j < 64; ++j) {  // rows from the top: row i -= L_ij row j
    for (uint64_t i = j + 1; i < 64; ++i) {
      for (uint64_t c = 0; c < 64; ++c) a[i * 64 + c] -= l->at(i, j) * a[j * 64 + c];
    }
  }
  for (uint64_t i = 16; i < 64; ++i) {
    for (uint64_t j = 0; j < i / 16 * 16; ++j) CHECK(std::fabs(a[i * 64 + j]) < 2e-4 * diagonal);
  }
  CHECK_FALSE(block_ldl(Matrix(32, 32), 0.01));
}

TEST_CASE("moments: an expert that few rows reach borrows those of its layer") {
  constexpr uint64_t kInputs = 8;
  Hessian all(kInputs);
  all.add(normal(400, kInputs, 31).values, 1);
  const Matrix layer = all.mean();
  Hessian own(kInputs);
  Moments moments = mix_moments(own, all);
  CHECK(moments.kind == "mixed");
  CHECK(moments.rows == 0);
  CHECK(moments.mean->values == layer.values);
  // As many rows as inputs: half of each.
  own.add(normal(kInputs, kInputs, 32, 3).values, 1);
  moments = mix_moments(own, all);
  CHECK(moments.kind == "mixed");
  const Matrix mine = own.mean();
  for (size_t i = 0; i < layer.values.size(); ++i) {
    CHECK(moments.mean->values[i] ==
          doctest::Approx(0.5 * (mine.values[i] + layer.values[i])).epsilon(1e-5));
  }
  own.add(normal(3 * kInputs, kInputs, 33, 3).values, 1);
  moments = mix_moments(own, all);
  CHECK(moments.kind == "full");
  CHECK(moments.rows == 4 * kInputs);
  CHECK(moments.mean->values == own.mean().values);
  // A layer that no row reached: nothing is known.
  CHECK(mix_moments(Hessian(kInputs), Hessian(kInputs)).mean == nullptr);
}

TEST_CASE("linears: an independent reader gets what the encoder says, padded or not") {
  struct Size {
    uint64_t n, k;
  };
  for (const Size size : {Size{128, 128}, Size{144, 200}}) {
    const Matrix weight = normal(size.n, size.k, 21, 0.02f);
    for (const uint32_t bits : {2u, 3u, 5u}) {
      const EncodedLinear out = encode_exl3("m", weight, {}, {.bits = bits, .threads = 2});
      REQUIRE(out.tensors.size() == 4);
      CHECK(out.tensors[0].name == "m.trellis");
      const uint64_t padded_k = (size.k + 127) / 128 * 128, padded_n = (size.n + 127) / 128 * 128;
      CHECK(out.tensors[0].dims == std::vector<uint64_t>{padded_k / 16, padded_n / 16, 16 * bits});
      CHECK(out.tensors[3].name == "m.mul1");
      CHECK(out.tensors[3].dims.empty());
      int32_t marker = 0;
      std::memcpy(&marker, out.tensors[3].bytes.data(), 4);
      CHECK(marker == -2082680531);
      const std::vector<uint16_t> svh = halves(out.tensors[2]);
      const std::vector<double> read =
          testing::exl3_weight(halves(out.tensors[0]), halves(out.tensors[1]), svh, bits, "mul1");
      double largest = 0;
      for (uint64_t r = 0; r < size.n; ++r) {
        for (uint64_t c = 0; c < size.k; ++c) {
          largest = std::max(largest, std::fabs(read[c * padded_n + r] - out.decoded.at(r, c)));
        }
      }
      CHECK(largest < 1e-6);
      for (uint64_t r = size.n; r < padded_n; ++r) CHECK(svh[r] == 0);
      const double bound = std::pow(2.0, -static_cast<double>(bits));
      CHECK(relative_error(weight, out.decoded) < 1.2 * bound);
    }
  }
}

TEST_CASE("linears: other codebooks have their markers and decode as well") {
  const Matrix weight = normal(128, 128, 22, 0.02f);
  for (const char* name : {"mcg", "3inst"}) {
    const EncodedLinear out =
        encode_exl3("m", weight, {}, {.bits = 3, .codebook = *parse_codebook(name), .threads = 2});
    CHECK(out.tensors.size() == (std::string(name) == "mcg" ? 4 : 3));
    const std::vector<double> read = testing::exl3_weight(
        halves(out.tensors[0]), halves(out.tensors[1]), halves(out.tensors[2]), 3, name);
    CHECK(read[5 * 128 + 9] == doctest::Approx(out.decoded.at(9, 5)).epsilon(1e-4));
    CHECK(relative_error(weight, out.decoded) < 0.15);
  }
}

TEST_CASE("linears: error feedback halves the error that correlated inputs see") {
  const Matrix weight = normal(128, 256, 23, 0.02f);
  const Moments moments = correlated_moments(256, 6);
  for (const uint32_t bits : {2u, 4u}) {
    const auto plain =
        encode_exl3("m", weight, moments, {.bits = bits, .error_feedback = false, .threads = 2});
    double told = 0;
    const auto fed = encode_exl3("m", weight, moments,
                                 {.bits = bits, .threads = 2, .on_part = [&](double share) {
                                    CHECK(share > told);
                                    told = share;
                                  }});
    CHECK(told == 1);
    CHECK(fed.proxy_error < 0.6 * plain.proxy_error);
    CHECK(relative_error(weight, fed.decoded) > relative_error(weight, plain.decoded));
  }
}

TEST_CASE("linears: bytes do not depend on threads") {
  const Matrix weight = normal(256, 128, 24, 0.02f);
  const Moments moments = correlated_moments(128, 8);
  const auto one = encode_exl3("m", weight, moments, {.bits = 3, .threads = 1});
  const auto three = encode_exl3("m", weight, moments, {.bits = 3, .threads = 3});
  for (size_t i = 0; i < one.tensors.size(); ++i) {
    CHECK(one.tensors[i].bytes == three.tensors[i].bytes);
  }
}

TEST_CASE("linears: a weight of zeros and useless moments do no harm") {
  const auto zeros = encode_exl3("m", Matrix(128, 128), {}, {.bits = 2, .threads = 1});
  for (const float value : zeros.decoded.values) REQUIRE(value == 0);
  Moments none;
  none.mean = std::make_shared<const Matrix>(128, 128);
  const Matrix weight = normal(128, 128, 25, 0.02f);
  const auto out = encode_exl3("m", weight, none, {.bits = 2, .threads = 1});
  CHECK(out.note.find("without a Hessian") != std::string::npos);
  CHECK(relative_error(weight, out.decoded) < 0.3);
}

TEST_SUITE_END();

}  // namespace
}  // namespace atlas::quantize
