#include "tools/atlas-quantize/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "tools/atlas-quantize/ldlq.h"
#include "tools/atlas-quantize/number_codes.h"
#include "tools/atlas-quantize/parallel.h"
#include "tools/atlas-quantize/products.h"

namespace atlas::quantize {

namespace {

constexpr uint64_t kBlock = 16;
static_assert(kBlock == kTileSide, "feed_back rounds as many inputs at once");
constexpr uint64_t kOutputs = 64;  // of a thread's piece, with error feedback

struct Block {
  uint8_t scale = 0;
  uint8_t codes[kBlock] = {};
  double error = std::numeric_limits<double>::infinity();  // sum of squares
};

/// The block with scale code `scale`, rounded to nearest with the scale as it will be read. It is
/// left unfinished once its error is not below `bound`.
Block round_block(const float* values, uint8_t scale, float tensor_scale, double bound) {
  Block block;
  block.scale = scale;
  block.error = 0;
  const float step = e4m3_value(scale) * tensor_scale;
  for (uint64_t i = 0; i < kBlock; ++i) {
    block.codes[i] = e2m1_from_float(values[i] / step);
    const double apart = double{values[i]} - double{e2m1_value(block.codes[i])} * step;
    block.error += apart * apart;
    if (block.error >= bound) break;
  }
  return block;
}

/// The e4m3 code that maps the block's largest magnitude to `top`.
uint8_t scale_code(float largest, float top, float tensor_scale) {
  const float raw = largest / (top * tensor_scale);
  if (raw == 0) return e4m3_from_float(1.0f);
  return e4m3_from_float(std::clamp(raw, kSmallestE4m3, kLargestE4m3));
}

Block encode_block(const float* values, Nvfp4Scales scales, float tensor_scale) {
  float largest = 0;
  for (uint64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  const uint8_t six = scale_code(largest, 6, tensor_scale);
  Block best = round_block(values, six, tensor_scale, std::numeric_limits<double>::infinity());
  const auto consider = [&](uint8_t code) {
    const Block block = round_block(values, code, tensor_scale, best.error);
    if (block.error < best.error) best = block;
  };
  if (scales == Nvfp4Scales::kFourOverSix) consider(scale_code(largest, 4, tensor_scale));
  if (scales == Nvfp4Scales::kMse && largest > 0) {
    // Codes are ordered as their values: from the maximum mapped to about 12 to it mapped to 3.
    const int low = std::max<int>(1, scale_code(largest, 12, tensor_scale));
    const int high = std::min<int>(0x7e, scale_code(largest, 3, tensor_scale));
    for (int code = low; code <= high; ++code) consider(static_cast<uint8_t>(code));
  }
  return best;
}

/// weight_scale_2. A tensor of zeros, or one too small for float32's normal numbers, takes 1.
float scale_of_tensor(const Matrix& weight, Nvfp4Scales scales) {
  float largest = 0;
  for (const float value : weight.values) largest = std::max(largest, std::fabs(value));
  const float headroom = scales == Nvfp4Scales::kFourOverSix ? 256.0f : kLargestE4m3;
  const float ratio = largest / (6.0f * headroom);
  return std::isnormal(ratio) ? ratio : 1.0f;
}

Matrix transposed(const Matrix& m) {
  Matrix out(m.columns, m.rows);
  for (uint64_t r = 0; r < m.rows; ++r) {
    for (uint64_t c = 0; c < m.columns; ++c) out.at(c, r) = m.at(r, c);
  }
  return out;
}

}  // namespace

Result<Nvfp4Scales> nvfp4_scales(const std::string& name) {
  if (name == "max") return Nvfp4Scales::kMax;
  if (name == "four-over-six") return Nvfp4Scales::kFourOverSix;
  if (name == "mse") return Nvfp4Scales::kMse;
  return invalid_argument("NVFP4 scales '{}' are not known: max, mse and four-over-six are", name);
}

EncodedLinear encode_nvfp4(const std::string& module, const Matrix& weight, const Moments& moments,
                           Nvfp4Scales scales, uint32_t threads) {
  const uint64_t n = weight.rows, k = weight.columns;
  EncodedLinear out;
  std::optional<Matrix> factor;
  if (moments.mean != nullptr) {
    auto made = block_ldl(*moments.mean, kDamping);
    if (made) {
      factor = std::move(*made);
    } else {
      out.note = "rounded without a Hessian: " + made.error().message();
    }
  }
  const float tensor_scale = scale_of_tensor(weight, scales);
  std::vector<uint8_t> packed(n * k / 2), block_scales(n * k / kBlock);
  out.decoded = Matrix(n, k);
  const auto encode = [&](uint64_t r, uint64_t b, const float* values) {
    const Block block = encode_block(values, scales, tensor_scale);
    block_scales[r * (k / kBlock) + b] = block.scale;
    const float step = e4m3_value(block.scale) * tensor_scale;
    for (uint64_t i = 0; i < kBlock; ++i) {
      uint8_t& byte = packed[(r * k + b * kBlock + i) / 2];
      byte = static_cast<uint8_t>(byte | block.codes[i] << (i % 2 == 0 ? 0 : 4));
      out.decoded.at(r, b * kBlock + i) = e2m1_value(block.codes[i]) * step;
    }
  };
  if (factor) {
    const Matrix columns = transposed(weight);
    for_each_piece((n + kOutputs - 1) / kOutputs, threads, [&](uint64_t piece) {
      const uint64_t begin = piece * kOutputs, width = std::min(kOutputs, n - begin);
      feed_back(columns, &*factor, begin, width,
                [&](uint64_t b, const float* aims, float* decoded) {
                  for (uint64_t c = 0; c < width; ++c) {
                    float values[kBlock];
                    for (uint64_t i = 0; i < kBlock; ++i) values[i] = aims[i * width + c];
                    encode(begin + c, b, values);
                    for (uint64_t i = 0; i < kBlock; ++i) {
                      decoded[i * width + c] = out.decoded.at(begin + c, b * kBlock + i);
                    }
                  }
                });
    });
  } else {
    for_each_piece(n, threads, [&](uint64_t r) {
      for (uint64_t b = 0; b < k / kBlock; ++b) encode(r, b, &weight.values[r * k + b * kBlock]);
    });
  }
  if (moments.mean != nullptr) {
    out.proxy_error = proxy_error(weight, out.decoded, *moments.mean, threads);
  }
  out.tensors.push_back({module + ".weight", ATLAS_U8, {n, k / 2}, bytes_of<uint8_t>(packed)});
  out.tensors.push_back(
      {module + ".weight_scale", ATLAS_F8_E4M3, {n, k / kBlock}, bytes_of<uint8_t>(block_scales)});
  out.tensors.push_back(
      {module + ".weight_scale_2", ATLAS_F32, {}, bytes_of(std::span(&tensor_scale, 1))});
  out.bits = 4.5 + 32.0 / static_cast<double>(n * k);
  return out;
}

}  // namespace atlas::quantize
