// Tensors on their way from one checkpoint into another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::quantize {

/// Row-major [rows, columns]; of a linear [outputs, inputs].
struct Matrix {
  uint64_t rows = 0, columns = 0;
  std::vector<float> values;

  Matrix() = default;
  Matrix(uint64_t r, uint64_t c) : rows(r), columns(c), values(r * c) {}
  std::span<float> row(uint64_t r) { return std::span(values).subspan(r * columns, columns); }
  std::span<const float> row(uint64_t r) const {
    return std::span(values).subspan(r * columns, columns);
  }
  float& at(uint64_t r, uint64_t c) { return values[r * columns + c]; }
  float at(uint64_t r, uint64_t c) const { return values[r * columns + c]; }
};

/// A tensor as it will lie in a file. An empty shape is a scalar.
struct EncodedTensor {
  std::string name;
  AtlasDType dtype = ATLAS_F32;
  std::vector<uint64_t> dims;
  std::vector<std::byte> bytes;
};

/// `elements` as they lie in memory.
template <typename T>
std::vector<std::byte> bytes_of(std::span<const T> elements) {
  std::vector<std::byte> bytes(elements.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

/// What a linear became: its tensors, what they decode to, and what is worth saying.
struct EncodedLinear {
  std::vector<EncodedTensor> tensors;
  Matrix decoded;           // as the linear's weight [outputs, inputs]
  double bits = 0;          // of a weight, all tensors, over the weights without padding
  double proxy_error = -1;  // tr(E H E^T) / tr(W H W^T), or below 0 where no Hessian was used
  std::string note;         // what the report says beside it; usually empty
};

}  // namespace atlas::quantize
