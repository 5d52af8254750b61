// Quantization plugin "bf16": weights that are floating-point numbers (bfloat16, float16, float32),
// as safetensors checkpoints have them. Contracts "f32" on the CPU (kernels/common/packed_float.h),
// "bf16_k16_s256" on GPUs (kernels/common/gpu/product.h), and "f16_k16_s256"
// (kernels/common/gpu_half.h) there for bf16 and f16 weights whose rows a norm makes.
#include <array>
#include <span>

#include "kernels/common/float_formats.h"
#include "kernels/common/linear_traits.h"
#include "plugins/sdk/packed_linear.h"

namespace atlas::quant_bf16 {
namespace {

constexpr std::array kCpu = {
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, bf16, BF16),
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, f16, F16),
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, f32, F32),
};
constexpr std::array kMma = {
    ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kMma, "mma", bf16, BF16),
    ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kMma, "mma", f16, F16),
    ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kMma, "mma", f32, F32),
    ATLAS_GPU_HALF_FORMAT(sdk::PackedFormat, kMma, "mma", bf16, BF16),
    ATLAS_GPU_HALF_FORMAT(sdk::PackedFormat, kMma, "mma", f16, F16),
};
constexpr std::array kWmma = {
    ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kWmma, "wmma", bf16, BF16),
    ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kWmma, "wmma", f16, F16),
    ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kWmma, "wmma", f32, F32),
    ATLAS_GPU_HALF_FORMAT(sdk::PackedFormat, kWmma, "wmma", bf16, BF16),
    ATLAS_GPU_HALF_FORMAT(sdk::PackedFormat, kWmma, "wmma", f16, F16),
};

struct Traits : kernels::LinearTraits {
  static std::span<const sdk::PackedFormat> formats(std::string_view platform) {
    return table_of<std::span<const sdk::PackedFormat>>(platform, kCpu, kMma, kWmma);
  }
};

constexpr AtlasQuantApi kApi = sdk::PackedLinear<Traits>::api();
constexpr AtlasPlugin kPlugin = sdk::quant_plugin(&kApi);

}  // namespace
}  // namespace atlas::quant_bf16

ATLAS_DESCRIPTOR(atlas::sdk::describe_products<atlas::quant_bf16::Traits,
                                               atlas::sdk::gpu_kernels(atlas::quant_bf16::kMma)>(
    atlas::sdk::Identity{ATLAS_KIND_QUANT, "bf16", "0.1.0", "Apache-2.0"}, atlas::quant_bf16::kCpu,
    std::array<const char*, 0>{}, atlas::quant_bf16::kMma,
    std::array{atlas::kernels::kEncodeBf16, atlas::kernels::kEncodeHalf}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_bf16::kPlugin, host, error);
}
