// Element types of checkpoints: their names, block sizes, and how each file format spells them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::model {

/// A type's lower-case name and the size of its smallest unit. Plain types have blocks of one.
struct DTypeInfo {
  AtlasDType dtype;
  std::string_view name;
  uint32_t block_elements;
  uint32_t block_bytes;
};

/// The facts of `dtype`, or null for a number that the ABI does not define.
const DTypeInfo* dtype_info(AtlasDType dtype);
/// "q4_1", "bf16"; "unknown" for a number that the ABI does not define.
std::string_view dtype_name(AtlasDType dtype);

/// The type that a safetensors header calls `name` ("BF16"), if Atlas reads it.
std::optional<AtlasDType> dtype_from_safetensors(std::string_view name);
/// All names that `dtype_from_safetensors` knows, for error messages.
std::string_view safetensors_dtype_names();

/// The type with number `type` in a GGUF tensor record, if Atlas reads it.
std::optional<AtlasDType> dtype_from_ggml(uint32_t type);
/// The number that GGUF gives to `dtype`, if it has one.
std::optional<uint32_t> ggml_from_dtype(AtlasDType dtype);
/// What GGUF calls type number `type`, also for types that Atlas does not read; empty if unheard
/// of.
std::string_view ggml_type_name(uint32_t type);
/// All types that `dtype_from_ggml` knows, for error messages.
std::string_view ggml_dtype_names();

/// Bytes of a dense tensor with `dims` elements (outermost first; the last is the row length).
/// Nothing if the product overflows or a row is not a whole number of blocks.
std::optional<uint64_t> tensor_bytes(const DTypeInfo& info, std::span<const uint64_t> dims);

}  // namespace atlas::model
