// Quantization plugin "bf16": weights that are floating-point numbers (bfloat16, float16, float32),
// as safetensors checkpoints have them. Contract "f32" (kernels/common/packed_float.h).
#include <array>
#include <span>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/float_formats.h"
#include "plugins/sdk/packed_linear.h"

namespace atlas::quant_bf16 {
namespace {

constexpr std::array kFormats = {
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, bf16, BF16),
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, f16, F16),
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, f32, F32),
};

struct Traits : kernels::CpuLinearTraits {
  static std::span<const sdk::PackedFormat> formats() { return kFormats; }
};

constexpr AtlasQuantApi kApi = sdk::PackedLinear<Traits>::api();
constexpr AtlasPlugin kPlugin = sdk::quant_plugin(&kApi);

}  // namespace
}  // namespace atlas::quant_bf16

ATLAS_DESCRIPTOR(atlas::sdk::describe(
    atlas::sdk::Identity{ATLAS_KIND_QUANT, "bf16", "0.1.0", "Apache-2.0"},
    std::array<std::string_view, 1>{"cpu"},
    atlas::sdk::kernels_of<atlas::quant_bf16::Traits>(atlas::quant_bf16::kFormats,
                                                      std::array<AtlasDescriptorKernel, 0>{})));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_bf16::kPlugin, host, error);
}
