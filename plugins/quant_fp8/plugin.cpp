// Quantization plugin "fp8": e4m3 weights with scales, multiplied with float32 activations on the
// CPU (kernels/common/fp8.h) and with bf16 ones on GPUs (kernels/common/gpu_fp8.h). All scales are
// multiplied, whatever their names say.
//
// Tensors of a module [n, k]: weight f8_e4m3 [n, k], and one of
//   weight_scale or weight_scale_inv, f32, bf16 or f16: one number ("fp8"); [n] or [n, 1], a number
//     a row ("fp8"); [ceil(n / 128), ceil(k / 128)], one for each block of 128 x 128 ("fp8_b128")
//   weight_scale, u8 or f8_e8m0 [n, k / 32]: powers of two ("mxfp8")
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "kernels/common/float_formats.h"
#include "kernels/common/fp8.h"
#include "kernels/common/gpu_fp8.h"
#include "kernels/common/linear_traits.h"
#include "kernels/common/packed_float.h"
#include "plugins/sdk/module_linear.h"

namespace atlas::quant_fp8 {
namespace {

using kernels::Fp8Scales;
using sdk::describe;
using sdk::Failure;
using sdk::ModuleTensors;

template <Fp8Scales kScales>
uint64_t group_bytes(uint64_t k) {
  return kernels::fp8_group_bytes(kScales, k);
}

template <Fp8Scales kScales>
constexpr sdk::PackedFormat make_format(const char* name, const char* layout, const char* linear,
                                        const char* grouped, const char* gather, uint32_t block) {
  sdk::PackedFormat format{};
  format.name = name;
  format.contract = kernels::kF32Contract;
  format.layout = layout;
  format.encoding = "";
  format.linear = linear;
  format.grouped = grouped;
  format.gather = gather;
  format.dtype = ATLAS_F8_E4M3;
  format.block = block;
  format.group_bytes = group_bytes<kScales>;
  return format;
}

/// In the order of Fp8Scales.
constexpr std::array kCpu = {
    make_format<Fp8Scales::kRow>("fp8", "fp8 rows16 v1", "linear_fp8", "grouped_fp8", "gather_fp8",
                                 1),
    make_format<Fp8Scales::kBlock>("fp8_b128", "fp8_b128 rows16 v1", "linear_fp8_b128",
                                   "grouped_fp8_b128", "gather_fp8_b128", 1),
    make_format<Fp8Scales::kMx>("mxfp8", "mxfp8 rows16 v1", "linear_mxfp8", "grouped_mxfp8",
                                "gather_mxfp8", kernels::kMxBlock)};

template <Fp8Scales kScales>
uint64_t gpu_group_bytes(uint64_t k) {
  return kernels::gpu_fp8_group_bytes(kScales, k);
}

/// `format`: the line of the CPU's table, with the names of the GPUs' kernels.
template <Fp8Scales kScales>
constexpr sdk::PackedFormat gpu_format(sdk::PackedFormat format, const char* contract,
                                       const char* layout) {
  format.contract = contract;
  format.encoding = kernels::kBf16Encoding;
  format.encode = kernels::kEncodeBf16;
  format.layout = layout;
  format.group_bytes = gpu_group_bytes<kScales>;
  return format;
}
#define ATLAS_GPU_FP8(family)                                                                    \
  {                                                                                              \
    gpu_format<Fp8Scales::kRow>(ATLAS_GPU_KERNELS(kCpu[0], fp8), kernels::kBf16Contract,         \
                                "fp8 " family " v1"),                                            \
        gpu_format<Fp8Scales::kBlock>(ATLAS_GPU_KERNELS(kCpu[1], fp8_b128),                      \
                                      kernels::kBf16Block128Contract, "fp8_b128 " family " v1"), \
        gpu_format<Fp8Scales::kMx>(ATLAS_GPU_KERNELS(kCpu[2], mxfp8),                            \
                                   kernels::kBf16BlocksContract, "mxfp8 " family " v1")          \
  }
constexpr std::array<sdk::PackedFormat, 3> kWmma = ATLAS_GPU_FP8("wmma");
constexpr std::array<sdk::PackedFormat, 3> kMma = [] {
  std::array<sdk::PackedFormat, 3> formats = ATLAS_GPU_FP8("mma");
  formats[0] =
      ATLAS_WGMMA_KERNELS(formats[0], fp8, kernels::kGpuFp8UnitBytes, kernels::kGpuFp8Unit);
  formats[1] =
      ATLAS_WGMMA_KERNELS(formats[1], fp8_b128, kernels::kGpuFp8UnitBytes, kernels::kGpuFp8Unit);
  return formats;
}();

[[noreturn]] void refuse(const std::string& message) {
  throw Failure(ATLAS_INVALID_ARGUMENT, message);
}

uint64_t blocks(uint64_t size) {
  return size / kernels::kFp8Block + (size % kernels::kFp8Block != 0);
}

struct Matrix {
  const sdk::PackedFormat* format;
  uint64_t n, k;
  const AtlasTensor* codes;
  const AtlasTensor* scales;
  Fp8Scales kind;
  bool one;  // scale, of kRow
};

std::string shape_text(uint64_t rows, uint64_t columns) {
  return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

/// Which scales `scales` are, by type and shape.
Matrix matrix_of(std::span<const sdk::PackedFormat> formats, const AtlasTensor& codes,
                 const AtlasTensor& scales) {
  const uint64_t n = codes.dims[0], k = codes.dims[1];
  Matrix matrix{nullptr, n, k, &codes, &scales, Fp8Scales::kRow, sdk::is_scalar(scales)};
  uint64_t count = 0, size = 1;
  if (scales.dtype == ATLAS_U8 || scales.dtype == ATLAS_F8_UE8M0) {
    if (k % kernels::kMxBlock != 0 || !sdk::has_shape(scales, {n, k / kernels::kMxBlock})) {
      refuse(describe(scales) + " must have a scale for each 32 of a row of " + describe(codes));
    }
    matrix.kind = Fp8Scales::kMx;
    count = n * (k / kernels::kMxBlock);
  } else if (scales.dtype == ATLAS_F32 || scales.dtype == ATLAS_BF16 || scales.dtype == ATLAS_F16) {
    size = scales.dtype == ATLAS_F32 ? 4 : 2;
    if (matrix.one) {
      count = 1;
    } else if (sdk::has_shape(scales, {n}) || sdk::has_shape(scales, {n, 1})) {
      count = n;
    } else if (sdk::has_shape(scales, {blocks(n), blocks(k)})) {
      matrix.kind = Fp8Scales::kBlock;
      count = blocks(n) * blocks(k);
    } else {
      refuse(describe(scales) + " must be one number, " + shape_text(n, 1) + " or " +
             shape_text(blocks(n), blocks(k)) + " (blocks of 128 x 128) for " + describe(codes));
    }
  } else {
    refuse(describe(scales) + " must be f32, bf16 or f16, or u8 or f8_e8m0 for MXFP8");
  }
  sdk::check_bytes(scales, count, size);
  matrix.format = &formats[static_cast<size_t>(matrix.kind)];
  return matrix;
}

float float_scale(const Matrix& matrix, uint64_t index) {
  const float scale = kernels::stored_float(matrix.scales->dtype, matrix.scales->data, index);
  if (!(scale >= 0.0f && scale <= kernels::kFp8LargestScale)) {
    refuse(describe(*matrix.scales) + " has " + sdk::number_text(scale) + " at element " +
           std::to_string(index) + "; a scale must be from 0 to 2^7");
  }
  return scale;
}

/// The family of GPUs that a matrix is packed for; none: the CPU.
std::optional<kernels::MatrixFamily> family_of(const Matrix& matrix) {
  for (const sdk::PackedFormat& format : kMma) {
    if (matrix.format == &format) return kernels::MatrixFamily::kMma;
  }
  for (const sdk::PackedFormat& format : kWmma) {
    if (matrix.format == &format) return kernels::MatrixFamily::kWmma;
  }
  return std::nullopt;
}

void store_scales(const Matrix& matrix, uint64_t group, uint8_t* out) {
  constexpr uint64_t kLanes = kernels::kRowGroup;
  const std::optional<kernels::MatrixFamily> family = family_of(matrix);
  std::memset(out, 0, kernels::fp8_head_bytes(matrix.kind, matrix.k));
  const float factor = family ? 1.0f : kernels::kFp8HeadFactor;
  const auto put = [&](uint64_t at, float scale) {
    scale *= factor;
    std::memcpy(out + 4 * at, &scale, 4);
  };
  if (matrix.kind == Fp8Scales::kBlock) {
    const uint64_t columns = blocks(matrix.k), row = group * kLanes / kernels::kFp8Block;
    for (uint64_t b = 0; b < columns; ++b) put(b, float_scale(matrix, row * columns + b));
    return;
  }
  for (uint64_t lane = 0; lane < kLanes && group * kLanes + lane < matrix.n; ++lane) {
    const uint64_t row = group * kLanes + lane;
    if (matrix.kind == Fp8Scales::kRow) {
      put(lane, float_scale(matrix, matrix.one ? 0 : row));
      continue;
    }
    const uint64_t columns = matrix.k / kernels::kMxBlock;
    const uint8_t* from = static_cast<const uint8_t*>(matrix.scales->data) + row * columns;
    for (uint64_t b = 0; b < columns; ++b) {
      if (from[b] > kernels::kMxLargestScale) {
        refuse(describe(*matrix.scales) + " has " +
               (from[b] == 255 ? "NaN" : "2^" + std::to_string(from[b] - 127)) + " at row " +
               std::to_string(row) + ", column " + std::to_string(b) +
               "; a scale must be at most 2^7");
      }
      const auto row_of_group = static_cast<uint32_t>(lane);
      out[b * kLanes + (family ? kernels::row_place(*family, row_of_group) : lane)] = from[b];
    }
  }
}

/// Codes 0x7f and 0xff are NaN; the kernels would read them as numbers.
void check_codes(const Matrix& matrix, uint64_t row) {
  const uint8_t* codes = static_cast<const uint8_t*>(matrix.codes->data) + row * matrix.k;
  uint8_t largest = 0;
  for (uint64_t i = 0; i < matrix.k; ++i) {
    largest = std::max(largest, static_cast<uint8_t>(codes[i] & 0x7f));
  }
  if (largest == 0x7f) {
    refuse(describe(*matrix.codes) + " has NaN in row " + std::to_string(row));
  }
}

struct Traits : kernels::LinearTraits {
  using Matrix = quant_fp8::Matrix;
  static std::span<const sdk::PackedFormat> formats(std::string_view platform) {
    return table_of<std::span<const sdk::PackedFormat>>(platform, kCpu, kMma, kWmma);
  }

  static std::optional<Matrix> recognise(const ModuleTensors& tensors) {
    const AtlasTensor* codes = tensors.find("weight");
    if (codes == nullptr || codes->dtype != ATLAS_F8_E4M3) return std::nullopt;
    const AtlasTensor* scale = tensors.find("weight_scale");
    const AtlasTensor* inverse = tensors.find("weight_scale_inv");
    if (scale == nullptr && inverse == nullptr) {
      refuse(tensors.name_of("weight_scale") +
             " is missing, and so is weight_scale_inv: " + describe(*codes) + " needs one of them");
    }
    if (scale != nullptr && inverse != nullptr) {
      refuse(describe(*scale) + " and " + describe(*inverse) + " are both there: which is meant?");
    }
    if (const AtlasTensor* extra = tensors.find("pre_quant_scale")) {
      throw Failure(ATLAS_UNIMPLEMENTED, describe(*extra) + ": FP8 with AWQ's scales is not read");
    }
    tensors.refuse_beside(*codes,
                          {"weight_packed", "weight_scale_2", "weight_global_scale", "trellis"});
    constexpr uint64_t kMost = uint64_t{1} << 31;
    if (codes->rank != 2 || codes->dims[0] > kMost || codes->dims[1] > kMost) {
      refuse(describe(*codes) + " must be a matrix");
    }
    sdk::check_bytes(*codes, codes->dims[0] * codes->dims[1], 1);
    return matrix_of(sdk::table_of_query<Traits>(tensors), *codes,
                     scale != nullptr ? *scale : *inverse);
  }

  static void pack(const Matrix& matrix, uint64_t begin, uint64_t end, uint8_t* out) {
    for (const AtlasTensor* tensor : {matrix.codes, matrix.scales}) {
      if (tensor->data == nullptr) refuse(describe(*tensor) + " has no data");
    }
    for (uint64_t g = begin; g < end; ++g, out += matrix.format->group_bytes(matrix.k)) {
      store_scales(matrix, g, out);
      const uint8_t* rows[kRowGroup] = {};
      for (uint32_t r = 0; r < kRowGroup && g * kRowGroup + r < matrix.n; ++r) {
        const uint64_t row = g * kRowGroup + r;
        check_codes(matrix, row);
        rows[r] = static_cast<const uint8_t*>(matrix.codes->data) + row * matrix.k;
      }
      if (const auto family = family_of(matrix)) {
        kernels::pack_gpu_fp8_codes(*family, matrix.kind, rows, matrix.k, out);
      } else {
        kernels::pack_fp8_codes(matrix.kind, rows, matrix.k, out);
      }
    }
  }
};

constexpr AtlasQuantApi kApi = sdk::ModuleLinear<Traits>::api();
constexpr AtlasPlugin kPlugin = sdk::quant_plugin(&kApi);

}  // namespace
}  // namespace atlas::quant_fp8

ATLAS_DESCRIPTOR(atlas::sdk::describe_products<atlas::quant_fp8::Traits,
                                               atlas::sdk::gpu_kernels(atlas::quant_fp8::kMma)>(
    atlas::sdk::Identity{ATLAS_KIND_QUANT, "fp8", "0.1.0", "Apache-2.0"}, atlas::quant_fp8::kCpu,
    std::array<const char*, 0>{}, atlas::quant_fp8::kMma, std::array{atlas::kernels::kEncodeBf16}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_fp8::kPlugin, host, error);
}
