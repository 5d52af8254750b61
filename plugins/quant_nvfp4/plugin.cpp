// Quantization plugin "nvfp4": 4-bit e2m1 weights with an e4m3 scale for each 16 of a row and one
// float32 scale for a matrix, multiplied with 16-bit activations: integers on the CPU
// (kernels/common/nvfp4.h), bf16 on GPUs (kernels/common/gpu_nvfp4.h).
//
// Tensors of a module [n, k], as two tools name them:
//   ModelOpt:           weight        u8 [n, k/2]   weight_scale f8_e4m3 [n, k/16]
//                       weight_scale_2      one number, multiplied
//   compressed-tensors: weight_packed u8 [n, k/2]   weight_scale f8_e4m3 [n, k/16]
//                       weight_global_scale one number, divided by
// Scales of activations (input_scale, input_global_scale) have no use here: activations keep 16
// bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>

#include "kernels/common/float_formats.h"
#include "kernels/common/gpu_nvfp4.h"
#include "kernels/common/i16b32.h"
#include "kernels/common/linear_traits.h"
#include "kernels/common/nvfp4.h"
#include "plugins/sdk/module_linear.h"

namespace atlas::quant_nvfp4 {
namespace {

using sdk::describe;
using sdk::Failure;
using sdk::ModuleTensors;

constexpr sdk::PackedFormat make_format() {
  sdk::PackedFormat format{};
  format.name = "nvfp4";
  format.contract = format.encoding = kernels::kI16B32Name;
  format.layout = "nvfp4 rows16 v1";
  format.linear = "linear_nvfp4";
  format.grouped = "grouped_nvfp4";
  format.gather = "gather_nvfp4";
  format.encode = kernels::kEncodeI16B32;
  format.dtype = ATLAS_U8;
  format.block = kernels::kNvfp4Block;
  format.group_bytes = kernels::nvfp4_group_bytes;
  return format;
}
constexpr std::array kCpu = {make_format()};

constexpr sdk::PackedFormat make_gpu_format(const char* layout) {
  sdk::PackedFormat format = ATLAS_GPU_KERNELS(make_format(), nvfp4);
  format.contract = kernels::kBf16Contract;
  format.encoding = kernels::kBf16Encoding;
  format.encode = kernels::kEncodeBf16;
  format.layout = layout;
  format.group_bytes = kernels::gpu_nvfp4_group_bytes;
  return format;
}
constexpr std::array kMma = {ATLAS_WGMMA_KERNELS(
    make_gpu_format("nvfp4 mma v1"), nvfp4, kernels::kGpuNvfp4UnitBytes, kernels::kGpuNvfp4Unit)};
constexpr std::array kWmma = {make_gpu_format("nvfp4 wmma v1")};

[[noreturn]] void refuse(const std::string& message) {
  throw Failure(ATLAS_INVALID_ARGUMENT, message);
}

struct Matrix {
  const sdk::PackedFormat* format;
  uint64_t n, k;
  const AtlasTensor* codes;
  const AtlasTensor* scales;
  const AtlasTensor* number;  // the matrix scale
  bool reciprocal;
};

/// What would change the products beyond codes and scales.
void refuse_extras(const ModuleTensors& tensors) {
  for (const char* name : {"pre_quant_scale", "svdquant_lora_a", "svdquant_lora_b"}) {
    if (const AtlasTensor* extra = tensors.find(name)) {
      throw Failure(ATLAS_UNIMPLEMENTED,
                    describe(*extra) +
                        ": NVFP4 with AWQ's or SVDQuant's tensors is not read; use a "
                        "checkpoint without them");
    }
  }
}

void check(const Matrix& matrix) {
  const AtlasTensor& codes = *matrix.codes;
  const AtlasTensor& scales = *matrix.scales;
  if (matrix.k % kernels::kNvfp4Block != 0) {
    refuse(describe(codes) + " has rows of " + std::to_string(matrix.k) +
           " codes, which is no multiple of NVFP4's 16");
  }
  sdk::check_bytes(codes, matrix.n * (matrix.k / 2), 1);
  if (scales.dtype != ATLAS_F8_E4M3 ||
      !sdk::has_shape(scales, {matrix.n, matrix.k / kernels::kNvfp4Block})) {
    refuse(describe(scales) + " must be f8_e4m3 [" + std::to_string(matrix.n) + ", " +
           std::to_string(matrix.k / kernels::kNvfp4Block) + "], a scale for each 16 of the " +
           std::to_string(matrix.k) + " columns of " + codes.name);
  }
  sdk::check_bytes(scales, matrix.n * (matrix.k / kernels::kNvfp4Block), 1);
  if (matrix.number->dtype != ATLAS_F32 || !sdk::is_scalar(*matrix.number)) {
    refuse(describe(*matrix.number) + " must be one f32 number");
  }
  sdk::check_bytes(*matrix.number, 1, sizeof(float));
}

float matrix_scale(const Matrix& matrix) {
  if (matrix.number->data == nullptr) refuse(describe(*matrix.number) + " has no data");
  const float stored = kernels::stored_float(ATLAS_F32, matrix.number->data, 0);
  float scale = stored;
  if (matrix.reciprocal) {
    // The tool divides by the largest weight, and reads the infinity of a matrix of zeros as 1.
    scale = std::isinf(stored) && stored > 0 ? 1.0f : 1.0f / stored;
  }
  // Within these bounds a weight and the factors of nvfp4.h are exact, finite float32.
  const bool fits = scale == 0.0f || (scale >= 0x1p-100f && scale <= 0x1p100f);
  if (!(stored >= 0.0f) || !fits) {
    refuse(describe(*matrix.number) + " is " + sdk::number_text(stored) +
           "; a scale must be from 2^-100 to 2^100, or " + (matrix.reciprocal ? "inf" : "0") +
           " for a matrix of zeros");
  }
  return scale;
}

void check_scales(const Matrix& matrix, uint64_t first_row, uint64_t last_row) {
  const uint64_t columns = matrix.k / kernels::kNvfp4Block;
  const auto* scales = static_cast<const uint8_t*>(matrix.scales->data);
  uint8_t largest = 0;
  for (uint64_t i = first_row * columns; i < last_row * columns; ++i) {
    largest = std::max(largest, scales[i]);
  }
  if (largest < 0x7f) return;  // what follows is NaN and the codes with a sign
  const uint64_t at =
      std::find(scales + first_row * columns, scales + last_row * columns, largest) - scales;
  refuse(describe(*matrix.scales) + " has " +
         ((largest & 0x7f) == 0x7f ? "NaN" : "a negative scale") + " at row " +
         std::to_string(at / columns) + ", column " + std::to_string(at % columns));
}

struct Traits : kernels::LinearTraits {
  using Matrix = quant_nvfp4::Matrix;
  static std::span<const sdk::PackedFormat> formats(std::string_view platform) {
    return table_of<std::span<const sdk::PackedFormat>>(platform, kCpu, kMma, kWmma);
  }

  static std::optional<Matrix> recognise(const ModuleTensors& tensors) {
    const AtlasTensor* packed = tensors.find("weight_packed");
    const AtlasTensor* weight = tensors.find("weight");
    const AtlasTensor* scales = tensors.find("weight_scale");
    const AtlasTensor* codes = packed != nullptr ? packed : weight;
    const char* number_name = packed != nullptr ? "weight_global_scale" : "weight_scale_2";
    const AtlasTensor* number = tensors.find(number_name);
    // Bytes alone may be any format's: an e4m3 scale or a second scale makes them NVFP4.
    if (codes == nullptr || codes->dtype != ATLAS_U8) return std::nullopt;
    if (number == nullptr && (scales == nullptr || scales->dtype != ATLAS_F8_E4M3)) {
      return std::nullopt;
    }
    const auto need = [&](const AtlasTensor* tensor, const char* name) {
      if (tensor != nullptr) return;
      refuse(tensors.name_of(name) + " is missing: " + describe(*codes) +
             " looks like NVFP4, which needs it");
    };
    need(scales, "weight_scale");
    need(number, number_name);
    if (packed != nullptr && weight != nullptr) {
      refuse(describe(*packed) + " and " + describe(*weight) + " are both there: which is meant?");
    }
    tensors.refuse_beside(*codes, {"weight_scale_inv", "trellis"});
    if (codes->rank != 2 || codes->dims[1] > uint64_t{1} << 31) {
      refuse(describe(*codes) + " must be a matrix of pairs of codes");
    }
    refuse_extras(tensors);
    const Matrix matrix{&sdk::table_of_query<Traits>(tensors)[0],
                        codes->dims[0],
                        2 * codes->dims[1],
                        codes,
                        scales,
                        number,
                        packed != nullptr};
    check(matrix);
    return matrix;
  }

  static void pack(const Matrix& matrix, uint64_t begin, uint64_t end, uint8_t* out) {
    for (const AtlasTensor* tensor : {matrix.codes, matrix.scales}) {
      if (tensor->data == nullptr) refuse(describe(*tensor) + " has no data");
    }
    const float scale = matrix_scale(matrix);
    const uint64_t row_bytes = matrix.k / 2, columns = matrix.k / kernels::kNvfp4Block;
    check_scales(matrix, begin * kRowGroup, std::min(matrix.n, end * kRowGroup));
    for (uint64_t g = begin; g < end; ++g, out += matrix.format->group_bytes(matrix.k)) {
      const uint8_t* codes[kRowGroup] = {};
      const uint8_t* scales[kRowGroup] = {};
      for (uint32_t r = 0; r < kRowGroup && g * kRowGroup + r < matrix.n; ++r) {
        const uint64_t row = g * kRowGroup + r;
        codes[r] = static_cast<const uint8_t*>(matrix.codes->data) + row * row_bytes;
        scales[r] = static_cast<const uint8_t*>(matrix.scales->data) + row * columns;
      }
      if (matrix.format == &kCpu[0]) {
        kernels::pack_nvfp4(codes, scales, scale, matrix.k, out);
      } else {
        kernels::pack_gpu_nvfp4(
            matrix.format == &kMma[0] ? kernels::MatrixFamily::kMma : kernels::MatrixFamily::kWmma,
            codes, scales, scale, matrix.k, out);
      }
    }
  }
};

constexpr AtlasQuantApi kApi = sdk::ModuleLinear<Traits>::api();
constexpr AtlasPlugin kPlugin = sdk::quant_plugin(&kApi);

}  // namespace
}  // namespace atlas::quant_nvfp4

ATLAS_DESCRIPTOR(atlas::sdk::describe_products<atlas::quant_nvfp4::Traits,
                                               atlas::sdk::gpu_kernels(atlas::quant_nvfp4::kMma)>(
    atlas::sdk::Identity{ATLAS_KIND_QUANT, "nvfp4", "0.1.0", "Apache-2.0"},
    atlas::quant_nvfp4::kCpu, std::array{atlas::kernels::kEncodeI16B32}, atlas::quant_nvfp4::kMma,
    std::array{atlas::kernels::kEncodeBf16}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_nvfp4::kPlugin, host, error);
}
