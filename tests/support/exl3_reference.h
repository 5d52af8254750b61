// EXL3 decoded slowly, from the format's description and for tests: bits one by one, float16
// numbers by ldexp, Hadamard matrices by counting bits, everything in float64. Shares no code with
// plugins and kernels.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace atlas::test {

/// A float16's value; finite ones only.
inline double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

/// The nearest float16, ties to even, of a number in its range.
inline double rounded_to_half(double value) {
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), -14);
  return std::ldexp(std::nearbyint(std::ldexp(value, 10 - exponent)), exponent - 10);
}

/// Codebooks by their names: "3inst", "mcg", "mul1".
inline double slow_value(const std::string& codebook, uint32_t state) {
  if (codebook == "mul1") {
    const uint32_t u = state * 2212286765u;  // 0x83dcd12d
    double sum = 1024;
    for (int byte = 0; byte < 4; ++byte) sum += u >> 8 * byte & 255;
    return rounded_to_half(sum * half_value(0x1eee) + half_value(0xc931));
  }
  uint32_t u = codebook == "mcg" ? state * 3417055213u /* 0xcbac1fed */
                                 : state * 89226354u + 64248484u;
  u = (u & 0x8fff8fffu) ^ 0x3b603b60u;
  return rounded_to_half(half_value(static_cast<uint16_t>(u)) +
                         half_value(static_cast<uint16_t>(u >> 16)));
}

/// A tile: 16 * bits words of 16 bits as a checkpoint stores them; `bits` may be a half.
class SlowTile {
 public:
  SlowTile(const uint16_t* words, double bits) : ring_(static_cast<size_t>(256 * bits)) {
    for (size_t p = 0; p < ring_.size(); ++p) {
      const size_t word = p / 32;
      const uint32_t both = words[2 * word] | uint32_t{words[2 * word + 1]} << 16;
      ring_[p] = (both >> (31 - p % 32) & 1) != 0;
    }
    const int small = static_cast<int>(bits);
    const bool half = bits != small;
    size_t end = 0;
    for (int t = 0; t < 256; ++t) {
      end += static_cast<size_t>(small + (half && t % 2 == 1 ? 1 : 0));
      uint32_t state = 0;
      for (size_t i = 0; i < 16; ++i) {
        state = 2 * state + (ring_[(end + ring_.size() - 16 + i) % ring_.size()] ? 1 : 0);
      }
      states[t] = state;
    }
  }
  uint32_t states[256];

 private:
  std::vector<bool> ring_;
};

inline int tile_input(int t) { return 2 * (t / 8 % 4) + t % 2 + 8 * (t / 2 % 2); }
inline int tile_output(int t) { return t / 8 / 4 + 8 * (t % 8 / 4); }

/// A trellis matrix with its scales, as a checkpoint has them, random but for its shape.
struct SlowMatrix {
  SlowMatrix(std::string codebook_name, double bits_each, uint32_t outputs, uint32_t inputs,
             uint32_t seed)
      : codebook(std::move(codebook_name)), bits(bits_each), n(outputs), k(inputs) {
    std::mt19937 random(seed);
    words.resize(static_cast<size_t>(n / 16 * (k / 16) * (16 * bits)));
    for (uint16_t& word : words) word = static_cast<uint16_t>(random());
    // Magnitudes from 1/4 to 2 and both signs.
    const auto scale = [&] {
      const uint32_t r = static_cast<uint32_t>(random());
      return static_cast<uint16_t>((r & 0x83ff) | (13 + r / 65536 % 3) << 10);
    };
    for (uint32_t i = 0; i < k; ++i) suh.push_back(scale());
    for (uint32_t i = 0; i < n; ++i) svh.push_back(scale());
  }

  /// Given, not random: `tile_words` words a tile.
  SlowMatrix(std::string codebook_name, uint64_t words_each, std::vector<uint16_t> trellis,
             std::vector<uint16_t> inputs, std::vector<uint16_t> outputs)
      : codebook(std::move(codebook_name)),
        bits(static_cast<double>(words_each) / 16),
        n(static_cast<uint32_t>(outputs.size())),
        k(static_cast<uint32_t>(inputs.size())),
        words(std::move(trellis)),
        suh(std::move(inputs)),
        svh(std::move(outputs)) {}

  size_t tile_words() const { return static_cast<size_t>(16 * bits); }

  /// What[k][n].
  std::vector<double> inner() const {
    std::vector<double> values(size_t{k} * n);
    for (uint32_t i = 0; i < k / 16; ++i) {
      for (uint32_t j = 0; j < n / 16; ++j) {
        const SlowTile tile(words.data() + (size_t{i} * (n / 16) + j) * tile_words(), bits);
        for (int t = 0; t < 256; ++t) {
          const size_t at = (size_t{16} * i + tile_input(t)) * n + 16 * j + tile_output(t);
          values[at] = slow_value(codebook, tile.states[t]);
        }
      }
    }
    return values;
  }

  /// W[n][k], so that y = W x.
  std::vector<double> outer() const {
    const std::vector<double> what = inner();
    const auto sign = [](uint32_t a, uint32_t b) { return std::popcount(a & b) % 2 ? -1.0 : 1.0; };
    std::vector<double> half(what.size()), w(what.size());
    for (uint32_t i = 0; i < k; ++i) {
      for (uint32_t j = 0; j < n; ++j) {
        double sum = 0;
        for (uint32_t c = 0; c < 128; ++c) {
          sum += what[size_t{i} * n + j / 128 * 128 + c] * sign(c, j % 128);
        }
        half[size_t{i} * n + j] = sum;
      }
    }
    for (uint32_t i = 0; i < k; ++i) {
      for (uint32_t j = 0; j < n; ++j) {
        double sum = 0;
        for (uint32_t r = 0; r < 128; ++r) {
          sum += half[(size_t{i} / 128 * 128 + r) * n + j] * sign(r, i % 128);
        }
        w[size_t{j} * k + i] = sum / 128 * half_value(suh[i]) * half_value(svh[j]);
      }
    }
    return w;
  }

  std::string codebook;
  double bits;
  uint32_t n, k;
  std::vector<uint16_t> words, suh, svh;
};

/// Every codebook with each number of bits that it has.
inline std::vector<std::pair<std::string, double>> all_exl3_formats() {
  std::vector<std::pair<std::string, double>> formats;
  for (const char* codebook : {"3inst", "mcg", "mul1"}) {
    for (int bits = 1; bits <= 8; ++bits) formats.emplace_back(codebook, bits);
  }
  for (const double bits : {1.5, 2.5, 3.5}) formats.emplace_back("mul1", bits);
  return formats;
}

/// A matrix in which all 65536 states of a codebook occur. A tile of 8 bits holds 256 states of its
/// own choice in every second weight: 512 tiles.
inline SlowMatrix matrix_of_all_states(const std::string& codebook) {
  SlowMatrix matrix(codebook, 8, 512, 256, 1);
  uint32_t state = 0;
  for (size_t i = 0; i < matrix.words.size(); i += 2) {
    // Words of 32 bits hold two windows that share no bit.
    matrix.words[i + 1] = static_cast<uint16_t>(state++);
    matrix.words[i] = static_cast<uint16_t>(state++);
  }
  return matrix;
}

/// The largest error of y [m, n] against the length of x's row [m, k] times that of W's.
inline double largest_share(const SlowMatrix& matrix, const std::vector<float>& x,
                            const std::vector<float>& y, uint32_t n, uint32_t k) {
  const std::vector<double> w = matrix.outer();
  double largest = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const float* row = x.data() + i / n * k;
    const double* weight = w.data() + i % n * matrix.k;
    double exact = 0, x_size = 0, w_size = 0;
    for (uint32_t j = 0; j < k; ++j) {
      exact += row[j] * weight[j];
      x_size += double{row[j]} * row[j];
      w_size += weight[j] * weight[j];
    }
    const double error = std::fabs(y[i] - exact);
    if (std::isnan(error)) return HUGE_VAL;
    if (error != 0) largest = std::max(largest, error / std::sqrt(x_size * w_size));
  }
  return largest;
}

}  // namespace atlas::test
