// Matrix instructions of the emulator. Which lane holds which element comes from
// kernels/common/device/fragments.h and from nowhere else. Products are exact in float64, sums
// ascend in k, and the result is rounded to float32 once.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/common/codecs.h"
#include "kernels/common/device/fragments.h"
#include "tests/support/simt/lanes.h"

namespace atlas::simt {
namespace {

using device::Cell;
using device::Element;

constexpr uint32_t kLanes = Warp::kLanes;

struct F16 {
  static constexpr uint32_t kBits = 16;
  static double value(uint32_t code) { return kernels::f16_to_f32(static_cast<uint16_t>(code)); }
};
struct Bf16 {
  static constexpr uint32_t kBits = 16;
  static double value(uint32_t code) { return kernels::bf16_to_f32(static_cast<uint16_t>(code)); }
};
struct E4m3 {
  static constexpr uint32_t kBits = 8;
  static double value(uint32_t code) { return kernels::e4m3_to_f32(static_cast<uint8_t>(code)); }
};
struct S8 {
  static constexpr uint32_t kBits = 8;
  static double value(uint32_t code) { return static_cast<int8_t>(code); }
};
struct E2m1 {
  static constexpr uint32_t kBits = 4;
  static double value(uint32_t code) {
    constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const double magnitude = kMagnitudes[code & 7];
    return (code & 8) != 0 ? -magnitude : magnitude;
  }
};

template <typename Format>
uint32_t code_of(const uint32_t* words, uint32_t r, uint32_t e) {
  return words[r] >> Format::kBits * e & ((1u << Format::kBits) - 1);
}

// Integers up to 2^53 and their sums are exact in float64, so one arithmetic serves both.
float result(double sum, float) { return static_cast<float>(sum); }
int32_t result(double sum, int32_t) { return static_cast<int32_t>(static_cast<int64_t>(sum)); }

template <uint32_t kRows, uint32_t kColumns, uint32_t kDepth>
struct Operands {
  double a[kRows][kDepth];
  double b[kDepth][kColumns];
};

/// d(row, column) = c + sum over k of a b, for the cells that each lane's words are.
template <typename Sum, uint32_t kWords, uint32_t kRows, uint32_t kColumns, uint32_t kDepth,
          class CellOf>
void multiply(const Operands<kRows, kColumns, kDepth>& in, Lane* const* lanes,
              const CellOf& cell_of) {
  double d[kRows][kColumns];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t r = 0; r < kWords; ++r) {
      const Cell cell = cell_of(lane, r);
      d[cell.row][cell.column] = static_cast<double>(static_cast<const Sum*>(lanes[lane]->c)[r]);
    }
  }
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t k = 0; k < kDepth; ++k) {
      const double a = in.a[row][k];
      for (uint32_t column = 0; column < kColumns; ++column) d[row][column] += a * in.b[k][column];
    }
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t r = 0; r < kWords; ++r) {
      const Cell cell = cell_of(lane, r);
      static_cast<Sum*>(lanes[lane]->c)[r] = result(d[cell.row][cell.column], Sum());
    }
  }
}

template <typename Format, typename Sum, bool kScaled = false>
void mma(Lane* const* lanes) {
  constexpr uint32_t kPerWord = 32 / Format::kBits;
  Operands<16, 8, 8 * kPerWord> in;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t e = 0; e < kPerWord; ++e) {
      for (uint32_t r = 0; r < 4; ++r) {
        const Element at = device::mma_a_element(lane, r, e, kPerWord);
        in.a[at.row][at.k] = Format::value(code_of<Format>(lanes[lane]->a, r, e));
      }
      for (uint32_t r = 0; r < 2; ++r) {
        const Element at = device::mma_b_element(lane, r, e, kPerWord);
        in.b[at.k][at.row] = Format::value(code_of<Format>(lanes[lane]->b, r, e));
      }
    }
  }
  if constexpr (kScaled) {
    for (uint32_t k = 0; k < 8 * kPerWord; ++k) {
      const uint32_t shift = 8 * (k / 16);
      for (uint32_t row = 0; row < 16; ++row) {
        in.a[row][k] *= E4m3::value(lanes[device::mma_scale_a_lane(row)]->scale_a >> shift & 0x7f);
      }
      for (uint32_t column = 0; column < 8; ++column) {
        in.b[k][column] *=
            E4m3::value(lanes[device::mma_scale_b_lane(column)]->scale_b >> shift & 0x7f);
      }
    }
  }
  multiply<Sum, 4>(in, lanes, device::mma_cell);
}

template <typename Format, typename Sum>
bool wmma(Lane* const* lanes) {
  constexpr uint32_t kPerWord = 32 / Format::kBits, kWords = 16 / kPerWord;
  Operands<16, 16, 16> in;
  bool replicated = true;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t* a = lanes[lane]->a;
    const uint32_t* b = lanes[lane]->b;
    if (lane >= 16) {
      replicated = replicated && std::equal(a, a + kWords, lanes[lane - 16]->a) &&
                   std::equal(b, b + kWords, lanes[lane - 16]->b);
      continue;
    }
    for (uint32_t r = 0; r < kWords; ++r) {
      for (uint32_t e = 0; e < kPerWord; ++e) {
        const Element at = device::wmma_element(lane, r, e, kPerWord);
        in.a[at.row][at.k] = Format::value(code_of<Format>(a, r, e));
        in.b[at.k][at.row] = Format::value(code_of<Format>(b, r, e));
      }
    }
  }
  multiply<Sum, 8>(in, lanes, device::wmma_cell);
  return replicated;
}

template <typename Format>
void wgmma(const uint32_t (*a)[4], const uint8_t* b, uint32_t columns, bool add, float* values) {
  double left[16][16];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t r = 0; r < 4; ++r) {
      for (uint32_t e = 0; e < 2; ++e) {
        const Element at = device::mma_a_element(lane, r, e, 2);
        left[at.row][at.k] = Format::value(code_of<Format>(a[lane], r, e));
      }
    }
  }
  std::vector<double> right(size_t{columns} * 16);
  for (uint32_t i = 0; i < columns * 16; ++i) {
    right[i] = Format::value(b[2 * i] | uint32_t{b[2 * i + 1]} << 8);
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t r = 0; r < columns / 2; ++r) {
      const Cell cell = device::wgmma_cell(0, lane, r);
      float& value = values[lane * (columns / 2) + r];
      double sum = add ? static_cast<double>(value) : 0.0;
      for (uint32_t k = 0; k < 16; ++k) sum += left[cell.row][k] * right[16 * cell.column + k];
      value = static_cast<float>(sum);
    }
  }
}

}  // namespace

void run_wgmma_instruction(Matrix kind, const uint32_t (*a)[4], const uint8_t* b, uint32_t columns,
                           bool add, float* values) {
  if (kind == Matrix::kWgmmaF16) return wgmma<F16>(a, b, columns, add, values);
  wgmma<Bf16>(a, b, columns, add, values);
}

bool run_matrix_instruction(Matrix kind, Lane* const* lanes) {
  switch (kind) {
    case Matrix::kMmaF16:
      mma<F16, float>(lanes);
      return true;
    case Matrix::kMmaBf16:
      mma<Bf16, float>(lanes);
      return true;
    case Matrix::kMmaS8:
      mma<S8, int32_t>(lanes);
      return true;
    case Matrix::kMmaE4m3:
      mma<E4m3, float>(lanes);
      return true;
    case Matrix::kMmaNvfp4:
      mma<E2m1, float, true>(lanes);
      return true;
    case Matrix::kWmmaF16:
      return wmma<F16, float>(lanes);
    case Matrix::kWmmaBf16:
      return wmma<Bf16, float>(lanes);
    case Matrix::kWmmaIu8:
      return wmma<S8, int32_t>(lanes);
    case Matrix::kWgmmaF16:
    case Matrix::kWgmmaBf16:
    case Matrix::kCount:
      break;
  }
  return true;
}

}  // namespace atlas::simt
