#include "tools/atlas-quantize/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tools/atlas-quantize/number_codes.h"
#include "tools/atlas-quantize/parallel.h"

namespace atlas::quantize {

namespace {

constexpr uint64_t kBlock = 128;

float bf16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace

EncodedLinear encode_fp8(const std::string& module, const Matrix& weight, uint32_t threads) {
  const uint64_t n = weight.rows, k = weight.columns;
  const uint64_t block_rows = (n + kBlock - 1) / kBlock, block_columns = (k + kBlock - 1) / kBlock;
  std::vector<uint8_t> codes(n * k);
  std::vector<uint16_t> scales(block_rows * block_columns);
  EncodedLinear out;
  out.decoded = Matrix(n, k);
  for_each_piece(block_rows, threads, [&](uint64_t block_row) {
    const uint64_t row_end = std::min(n, (block_row + 1) * kBlock);
    for (uint64_t block_column = 0; block_column < block_columns; ++block_column) {
      const uint64_t begin = block_column * kBlock, end = std::min(k, begin + kBlock);
      float largest = 0;
      for (uint64_t r = block_row * kBlock; r < row_end; ++r) {
        for (uint64_t c = begin; c < end; ++c)
          largest = std::max(largest, std::fabs(weight.at(r, c)));
      }
      // A block of zeros takes scale 1; one that rounds to 0 in bf16 has no weight worth a code.
      const uint16_t bits = bf16_from_float(largest / kLargestE4m3);
      const bool empty = bf16_value(bits) == 0;
      const float scale = empty ? 1.0f : bf16_value(bits);
      scales[block_row * block_columns + block_column] = empty ? bf16_from_float(1.0f) : bits;
      for (uint64_t r = block_row * kBlock; r < row_end; ++r) {
        for (uint64_t c = begin; c < end; ++c) {
          const uint8_t code = e4m3_from_float(weight.at(r, c) / scale);
          codes[r * k + c] = code;
          out.decoded.at(r, c) = e4m3_value(code) * scale;
        }
      }
    }
  });
  out.tensors.push_back({module + ".weight", ATLAS_F8_E4M3, {n, k}, bytes_of<uint8_t>(codes)});
  out.tensors.push_back({module + ".weight_scale_inv",
                         ATLAS_BF16,
                         {block_rows, block_columns},
                         bytes_of<uint16_t>(scales)});
  out.bits = 8.0 + 16.0 * static_cast<double>(scales.size()) / static_cast<double>(n * k);
  return out;
}

}  // namespace atlas::quantize
