// Quantization plugin "gguf": the block formats of GGUF files, multiplied with 16-bit activations,
// and the floats that stand beside them.
#include "plugins/quant_gguf/formats.h"

namespace atlas::quant_gguf {
namespace {

struct Traits : kernels::CpuLinearTraits {
  static std::span<const sdk::PackedFormat> formats() { return kEncodedFormats; }
};

constexpr AtlasQuantApi kApi = sdk::PackedLinear<Traits>::api();
constexpr AtlasPlugin kPlugin = sdk::quant_plugin(&kApi);

}  // namespace
}  // namespace atlas::quant_gguf

ATLAS_DESCRIPTOR(atlas::sdk::describe(
    atlas::sdk::Identity{ATLAS_KIND_QUANT, "gguf", "0.1.0", "Apache-2.0"},
    std::array<std::string_view, 1>{"cpu"},
    atlas::sdk::kernels_of<atlas::quant_gguf::Traits>(
        atlas::quant_gguf::kEncodedFormats,
        std::array{atlas::sdk::required_kernel("cpu", atlas::kernels::kEncodeI16B32,
                                               atlas::kernels::kEncodeParamsDigest)})));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_gguf::kPlugin, host, error);
}
