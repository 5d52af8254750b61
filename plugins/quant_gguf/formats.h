// The tables of the two plugins that this folder makes. Both pack alike; they differ in the
// arithmetic of block formats: "gguf" rounds activations to 16 bits a block (contract "i16b32"),
// "gguf_f32" takes them as they are (contract "f32"), at about half the speed. On GPUs "gguf"
// rounds activations to bf16 (kernels/common/gpu_packed.h); "gguf_f32" is the CPU's alone.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "kernels/common/float_formats.h"
#include "kernels/common/gpu_packed.h"
#include "kernels/common/i16b32.h"
#include "kernels/common/linear_traits.h"
#include "plugins/quant_gguf/pack.h"
#include "plugins/sdk/packed_linear.h"

namespace atlas::quant_gguf {

template <const kernels::PackedLayout& kLayout>
uint64_t group_bytes(uint64_t k) {
  return kLayout.group_bytes(k);
}

/// What is the same in both tables; products are added by encoded() or plain().
template <const kernels::PackedLayout& kLayout, PackGroup kPack>
constexpr sdk::PackedFormat block_format(const char* name, const char* layout, const char* gather,
                                         AtlasDType dtype, uint32_t bytes) {
  sdk::PackedFormat format{};
  format.name = name;
  format.layout = layout;
  format.gather = gather;
  format.dtype = dtype;
  format.block = kLayout.block();
  format.block_bytes = bytes;
  format.group_bytes = group_bytes<kLayout>;
  format.pack = kPack;
  return format;
}

constexpr sdk::PackedFormat encoded(sdk::PackedFormat format, const char* linear,
                                    const char* grouped) {
  format.contract = kernels::kI16B32Name;
  format.encoding = kernels::kI16B32Name;
  format.encode = kernels::kEncodeI16B32;
  format.linear = linear;
  format.grouped = grouped;
  return format;
}

constexpr sdk::PackedFormat plain(sdk::PackedFormat format, const char* linear,
                                  const char* grouped) {
  format.contract = kernels::kF32Contract;
  format.encoding = "";
  format.linear = linear;
  format.grouped = grouped;
  return format;
}

#define ATLAS_BLOCK_FORMAT(name, NAME, bytes)                                                   \
  block_format<kernels::kPacked##NAME, pack_##name>(#name, #name " rows16 v1", "gather_" #name, \
                                                    ATLAS_##NAME, bytes)
#define ATLAS_ENCODED(name, NAME, bytes) \
  encoded(ATLAS_BLOCK_FORMAT(name, NAME, bytes), "linear_" #name, "grouped_" #name)
#define ATLAS_PLAIN(name, NAME, bytes) \
  plain(ATLAS_BLOCK_FORMAT(name, NAME, bytes), "linear_" #name "_f32", "grouped_" #name "_f32")

/// `BLOCK` is one of the two macros above.
#define ATLAS_GGUF_FORMATS(BLOCK)                                                               \
  {                                                                                             \
    BLOCK(q4_0, Q4_0, 18), BLOCK(q4_1, Q4_1, 20), BLOCK(q5_0, Q5_0, 22), BLOCK(q5_1, Q5_1, 24), \
        BLOCK(q8_0, Q8_0, 34), BLOCK(q4_k, Q4_K, 144), BLOCK(q5_k, Q5_K, 176),                  \
        BLOCK(q6_k, Q6_K, 210), ATLAS_FLOAT_FORMAT(sdk::PackedFormat, f32, F32),                \
        ATLAS_FLOAT_FORMAT(sdk::PackedFormat, f16, F16),                                        \
        ATLAS_FLOAT_FORMAT(sdk::PackedFormat, bf16, BF16)                                       \
  }

inline constexpr std::array<sdk::PackedFormat, 11> kEncodedFormats =
    ATLAS_GGUF_FORMATS(ATLAS_ENCODED);
inline constexpr std::array<sdk::PackedFormat, 11> kPlainFormats = ATLAS_GGUF_FORMATS(ATLAS_PLAIN);

template <const kernels::PackedLayout& kLayout>
uint64_t gpu_group_bytes(uint64_t k) {
  return kernels::GpuPacked{kLayout}.group_bytes(k);
}
/// By way of the CPU's layout, which has taken the checkpoint's blocks apart.
template <kernels::MatrixFamily kFamily, const kernels::PackedLayout& kLayout, PackGroup kPack>
void pack_gpu(const uint8_t* const* rows, uint64_t k, uint8_t* out) {
  std::vector<uint8_t> group(kLayout.group_bytes(k));
  kPack(rows, k, group.data());
  kernels::pack_gpu_packed(kFamily, kernels::GpuPacked{kLayout}, group.data(), k, out);
}

template <kernels::MatrixFamily kFamily, const kernels::PackedLayout& kLayout, PackGroup kPack>
constexpr sdk::PackedFormat gpu_block_format(const char* name, const char* layout, AtlasDType dtype,
                                             uint32_t bytes) {
  sdk::PackedFormat format = block_format<kLayout, kPack>(name, layout, nullptr, dtype, bytes);
  format.contract = kernels::kBf16BlocksContract;
  format.encoding = kernels::kBf16Encoding;
  format.encode = kernels::kEncodeBf16;
  format.group_bytes = gpu_group_bytes<kLayout>;
  format.pack = pack_gpu<kFamily, kLayout, kPack>;
  return format;
}

#define ATLAS_GPU_BLOCK(kFamily, family, name, NAME, bytes)                                   \
  ATLAS_GPU_KERNELS(                                                                          \
      (gpu_block_format<kernels::MatrixFamily::kFamily, kernels::kPacked##NAME, pack_##name>( \
          #name, #name " " family " v1", ATLAS_##NAME, bytes)),                               \
      name)
#define ATLAS_GPU_GGUF_FORMATS(kFamily, family)                                 \
  {                                                                             \
    ATLAS_GPU_BLOCK(kFamily, family, q4_0, Q4_0, 18),                           \
        ATLAS_GPU_BLOCK(kFamily, family, q4_1, Q4_1, 20),                       \
        ATLAS_GPU_BLOCK(kFamily, family, q5_0, Q5_0, 22),                       \
        ATLAS_GPU_BLOCK(kFamily, family, q5_1, Q5_1, 24),                       \
        ATLAS_GPU_BLOCK(kFamily, family, q8_0, Q8_0, 34),                       \
        ATLAS_GPU_BLOCK(kFamily, family, q4_k, Q4_K, 144),                      \
        ATLAS_GPU_BLOCK(kFamily, family, q5_k, Q5_K, 176),                      \
        ATLAS_GPU_BLOCK(kFamily, family, q6_k, Q6_K, 210),                      \
        ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kFamily, family, f32, F32),   \
        ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kFamily, family, f16, F16),   \
        ATLAS_GPU_FLOAT_FORMAT(sdk::PackedFormat, kFamily, family, bf16, BF16), \
        ATLAS_GPU_HALF_FORMAT(sdk::PackedFormat, kFamily, family, bf16, BF16),  \
        ATLAS_GPU_HALF_FORMAT(sdk::PackedFormat, kFamily, family, f16, F16)     \
  }

}  // namespace atlas::quant_gguf
