// The formats "f32", "f16" and "bf16" as a plugin's table has them; two plugins offer them.
#pragma once

#include <cstdint>

#include "kernels/common/gpu_half.h"
#include "kernels/common/packed_float.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::kernels {

template <FloatLayout kLayout>
uint64_t float_group_bytes_of(uint64_t k) {
  return float_group_bytes(kLayout, k);
}
template <FloatLayout kLayout>
void pack_floats_of(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  pack_floats(kLayout, rows, k, out);
}

/// Number `index` of an array of float32, float16 or bfloat16, anywhere in memory.
inline float stored_float(AtlasDType dtype, const void* data, uint64_t index) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (dtype == ATLAS_F32) return float_from_bits(load_u32(bytes + 4 * index));
  return dtype == ATLAS_F16 ? load_f16(bytes + 2 * index)
                            : bf16_to_f32(load_u16(bytes + 2 * index));
}

/// One line of the CPU's table; `Format` is plugins/sdk/packed_linear.h's PackedFormat.
#define ATLAS_FLOAT_FORMAT(Format, name, NAME)                                            \
  Format {                                                                                \
#name, ::atlas::kernels::kF32Contract, #name " rows16 v1", "", "linear_" #name,       \
        "grouped_" #name, "gather_" #name, nullptr, ATLAS_##NAME, 1,                      \
        ::atlas::kernels::float_bytes(::atlas::kernels::FloatLayout::k##NAME),            \
        ::atlas::kernels::float_group_bytes_of < ::atlas::kernels::FloatLayout::k##NAME>, \
        ::atlas::kernels::pack_floats_of < ::atlas::kernels::FloatLayout::k##NAME>        \
  }

/// The same for GPUs; `layout` names the resident bytes.
template <class Format, MatrixFamily kFamily, FloatLayout kLayout>
constexpr Format gpu_float_format(const char* name, AtlasDType dtype, const char* layout) {
  Format format{};
  format.name = name;
  format.contract = kBf16Contract;
  format.encoding = kBf16Encoding;
  format.layout = layout;
  format.encode = kEncodeBf16;
  format.dtype = dtype;
  format.block = 1;
  format.block_bytes = float_bytes(kLayout);
  format.group_bytes = gpu_float_group_bytes_of<kLayout>;
  format.pack = pack_gpu_floats_of<kFamily, kLayout>;
  format.divides = true;
  if (kLayout == FloatLayout::kBF16) {
    format.linear_silu = "linear_bf16_silu";
    format.linear_mean = "linear_bf16_mean";
  }
  if (kFamily == MatrixFamily::kMma && kLayout == FloatLayout::kBF16) {
    format.linear_wgmma = "linear_bf16_wgmma";
    format.grouped_wgmma = "grouped_bf16_wgmma";
    format.wgmma_encoding = kWgmmaEncoding;
    format.wgmma_encode = kEncodeWgmma;
    format.wgmma_runs = kRunsWgmma;
    format.wgmma_bytes = kWgmmaStage / kFloatUnit * gpu_float_unit_bytes(kLayout);
  }
  return format;
}
/// bf16 and f16 where a norm has made the rows: what bf16 has, in f16.
template <class Format, MatrixFamily kFamily, FloatLayout kLayout>
constexpr Format gpu_half_format(const char* name, AtlasDType dtype, const char* layout) {
  Format format = gpu_float_format<Format, kFamily, FloatLayout::kBF16>(name, dtype, layout);
  format.contract = kHalfContract;
  format.encoding = kHalfEncoding;
  format.encode = kEncodeHalf;
  format.group_bytes = gpu_half_group_bytes;
  format.pack = pack_gpu_halves_of<kFamily, kLayout>;
  format.normed = true;
  format.linear_silu = "linear_half_silu";
  format.linear_mean = nullptr;  // its rows are no norm's
  if (kFamily == MatrixFamily::kMma) {
    format.linear_wgmma = "linear_half_wgmma";
    format.grouped_wgmma = "grouped_half_wgmma";
    format.wgmma_encoding = kHalfWgmmaEncoding;
    format.wgmma_encode = kEncodeHalfWgmma;
  }
  return format;
}
/// The names of a format's kernels on GPUs.
#define ATLAS_GPU_KERNELS(format, name)           \
  [](auto line) constexpr {                       \
    line.linear = "linear_" #name;                \
    line.grouped = "grouped_" #name;              \
    line.gather = "gather_" #name;                \
    line.linear_many = "linear_" #name "_many";   \
    line.grouped_many = "grouped_" #name "_many"; \
    return line;                                  \
  }                                               \
  (format)
/// The same with the kernels of wgmma, for the table of platforms with mma.sync. `bytes`: of a unit
/// of `unit` elements of a group of 16 rows.
#define ATLAS_WGMMA_KERNELS(format, name, bytes, unit)                   \
  [](auto line) constexpr {                                              \
    line.linear_wgmma = "linear_" #name "_wgmma";                        \
    line.grouped_wgmma = "grouped_" #name "_wgmma";                      \
    line.wgmma_encoding = ::atlas::kernels::kWgmmaEncoding;              \
    line.wgmma_encode = ::atlas::kernels::kEncodeWgmma;                  \
    line.wgmma_runs = ::atlas::kernels::kRunsWgmma;                      \
    line.wgmma_bytes = ::atlas::kernels::kWgmmaStage / (unit) * (bytes); \
    return line;                                                         \
  }                                                                      \
  (format)
#define ATLAS_GPU_FLOAT_FORMAT(Format, kFamily, family, name, NAME)                        \
  ATLAS_GPU_KERNELS(                                                                       \
      (::atlas::kernels::gpu_float_format<Format, ::atlas::kernels::MatrixFamily::kFamily, \
                                          ::atlas::kernels::FloatLayout::k##NAME>(         \
          #name, ATLAS_##NAME, #name " " family " v2")),                                   \
      name)
#define ATLAS_GPU_HALF_FORMAT(Format, kFamily, family, name, NAME)                        \
  ATLAS_GPU_KERNELS(                                                                      \
      (::atlas::kernels::gpu_half_format<Format, ::atlas::kernels::MatrixFamily::kFamily, \
                                         ::atlas::kernels::FloatLayout::k##NAME>(         \
          #name "_half", ATLAS_##NAME, #name "_half " family " v1")),                     \
      half)

}  // namespace atlas::kernels
