// Quantization plugin "gguf": the block formats of GGUF files, multiplied with 16-bit activations,
// and the floats that stand beside them.
#include "plugins/quant_gguf/formats.h"

namespace atlas::quant_gguf {
namespace {

constexpr std::array<sdk::PackedFormat, 13> kMma = ATLAS_GPU_GGUF_FORMATS(kMma, "mma");
constexpr std::array<sdk::PackedFormat, 13> kWmma = ATLAS_GPU_GGUF_FORMATS(kWmma, "wmma");

struct Traits : kernels::LinearTraits {
  static std::span<const sdk::PackedFormat> formats(std::string_view platform) {
    return table_of<std::span<const sdk::PackedFormat>>(platform, kEncodedFormats, kMma, kWmma);
  }
};

constexpr AtlasQuantApi kApi = sdk::PackedLinear<Traits>::api();
constexpr AtlasPlugin kPlugin = sdk::quant_plugin(&kApi);

}  // namespace
}  // namespace atlas::quant_gguf

ATLAS_DESCRIPTOR(atlas::sdk::describe_products<atlas::quant_gguf::Traits,
                                               atlas::sdk::gpu_kernels(atlas::quant_gguf::kMma)>(
    atlas::sdk::Identity{ATLAS_KIND_QUANT, "gguf", "0.1.0", "Apache-2.0"},
    atlas::quant_gguf::kEncodedFormats, std::array{atlas::kernels::kEncodeI16B32},
    atlas::quant_gguf::kMma, std::array{atlas::kernels::kEncodeBf16, atlas::kernels::kEncodeHalf}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_gguf::kPlugin, host, error);
}
