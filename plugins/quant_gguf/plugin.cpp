// Quantization plugin "gguf": the block formats of GGUF files, and the floats that stand beside
// them.
//
// Block formats multiply in the contract "i16b32" (kernels/common/i16b32.h), floats in "f32".
#include <array>
#include <span>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/float_formats.h"
#include "kernels/common/i16b32.h"
#include "plugins/quant_gguf/pack.h"
#include "plugins/sdk/packed_linear.h"

namespace atlas::quant_gguf {
namespace {

template <const kernels::PackedLayout& kLayout>
uint64_t group_bytes(uint64_t k) {
  return kLayout.group_bytes(k);
}

template <const kernels::PackedLayout& kLayout, PackGroup kPack>
constexpr sdk::PackedFormat block_format(const char* name, const char* layout, const char* linear,
                                         const char* gather, AtlasDType dtype, uint32_t bytes) {
  return {name,
          kernels::kI16B32Name,
          layout,
          kernels::kI16B32Name,
          linear,
          gather,
          kernels::kEncodeI16B32,
          dtype,
          kLayout.block(),
          bytes,
          group_bytes<kLayout>,
          kPack};
}

#define ATLAS_BLOCK_FORMAT(name, NAME, bytes)                                                   \
  block_format<kernels::kPacked##NAME, pack_##name>(#name, #name " rows16 v1", "linear_" #name, \
                                                    "gather_" #name, ATLAS_##NAME, bytes)

constexpr std::array kFormats = {
    ATLAS_BLOCK_FORMAT(q4_0, Q4_0, 18),
    ATLAS_BLOCK_FORMAT(q4_1, Q4_1, 20),
    ATLAS_BLOCK_FORMAT(q5_0, Q5_0, 22),
    ATLAS_BLOCK_FORMAT(q5_1, Q5_1, 24),
    ATLAS_BLOCK_FORMAT(q8_0, Q8_0, 34),
    ATLAS_BLOCK_FORMAT(q4_k, Q4_K, 144),
    ATLAS_BLOCK_FORMAT(q5_k, Q5_K, 176),
    ATLAS_BLOCK_FORMAT(q6_k, Q6_K, 210),
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, f32, F32),
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, f16, F16),
    ATLAS_FLOAT_FORMAT(sdk::PackedFormat, bf16, BF16),
};

struct Traits : kernels::CpuLinearTraits {
  static std::span<const sdk::PackedFormat> formats() { return kFormats; }
};

constexpr AtlasQuantApi kApi = sdk::PackedLinear<Traits>::api();
constexpr AtlasPlugin kPlugin = {sizeof(AtlasPlugin),
                                 ATLAS_ABI_MAJOR,
                                 ATLAS_ABI_MINOR,
                                 ATLAS_KIND_QUANT,
                                 &kApi,
                                 nullptr,
                                 nullptr,
                                 nullptr};

}  // namespace
}  // namespace atlas::quant_gguf

ATLAS_DESCRIPTOR(atlas::sdk::describe(
    atlas::sdk::Identity{ATLAS_KIND_QUANT, "gguf", "0.1.0", "Apache-2.0"},
    std::array<std::string_view, 1>{"cpu"},
    atlas::sdk::kernels_of(atlas::quant_gguf::kFormats, "cpu", atlas::kernels::kLinearParamsDigest,
                           atlas::kernels::kGatherParamsDigest,
                           std::array{
                               atlas::sdk::required_kernel("cpu", atlas::kernels::kEncodeI16B32,
                                                           atlas::kernels::kEncodeParamsDigest)})));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_gguf::kPlugin, host, error);
}
