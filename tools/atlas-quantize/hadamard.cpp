#include "tools/atlas-quantize/hadamard.h"

#include "tools/atlas-quantize/parallel.h"

namespace atlas::quantize {

namespace {

constexpr float kScale = 0.08838834764831845f;  // 1 / sqrt(128)

}  // namespace

void hadamard_runs(std::span<float> values) {
  for (size_t begin = 0; begin < values.size(); begin += kHadamard) {
    float* run = values.data() + begin;
    for (uint64_t half = 1; half < kHadamard; half *= 2) {
      for (uint64_t i = 0; i < kHadamard; i += 2 * half) {
        for (uint64_t j = i; j < i + half; ++j) {
          const float a = run[j], b = run[j + half];
          run[j] = a + b;
          run[j + half] = a - b;
        }
      }
    }
    for (uint64_t i = 0; i < kHadamard; ++i) run[i] *= kScale;
  }
}

void hadamard_rows(Matrix& m, uint32_t threads) {
  for_each_piece(m.rows, threads, [&](uint64_t r) { hadamard_runs(m.row(r)); });
}

void hadamard_columns(Matrix& m, uint32_t threads) {
  for_each_piece(m.rows / kHadamard, threads, [&](uint64_t block) {
    const uint64_t first = block * kHadamard;
    for (uint64_t half = 1; half < kHadamard; half *= 2) {
      for (uint64_t i = 0; i < kHadamard; i += 2 * half) {
        for (uint64_t j = i; j < i + half; ++j) {
          const auto a = m.row(first + j), b = m.row(first + j + half);
          for (uint64_t c = 0; c < m.columns; ++c) {
            const float x = a[c], y = b[c];
            a[c] = x + y;
            b[c] = x - y;
          }
        }
      }
    }
    for (uint64_t i = 0; i < kHadamard; ++i) {
      for (float& value : m.row(first + i)) value *= kScale;
    }
  });
}

}  // namespace atlas::quantize
