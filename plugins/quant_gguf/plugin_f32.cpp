// Quantization plugin "gguf_f32": the same weights as "gguf", multiplied with float32 activations.
#include "plugins/quant_gguf/formats.h"

namespace atlas::quant_gguf {
namespace {

struct Traits : kernels::LinearTraits {
  static std::span<const sdk::PackedFormat> formats(std::string_view platform) {
    return table_of<std::span<const sdk::PackedFormat>>(platform, kPlainFormats, {}, {});
  }
};

constexpr AtlasQuantApi kApi = sdk::PackedLinear<Traits>::api();
constexpr AtlasPlugin kPlugin = sdk::quant_plugin(&kApi);

}  // namespace
}  // namespace atlas::quant_gguf

ATLAS_DESCRIPTOR(atlas::sdk::describe_products<atlas::quant_gguf::Traits>(
    atlas::sdk::Identity{ATLAS_KIND_QUANT, "gguf_f32", "0.1.0", "Apache-2.0"},
    atlas::quant_gguf::kPlainFormats, std::array<const char*, 0>{},
    std::array<atlas::sdk::PackedFormat, 0>{}, std::array<const char*, 0>{}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_gguf::kPlugin, host, error);
}
