// Tables of element types. Block sizes: spec of GGUF (ggml's quantized blocks) and the ABI header.
#include "daemon/model/checkpoint/dtype.h"

#include <array>

namespace atlas::model {
namespace {

constexpr DTypeInfo kTypes[] = {
    {ATLAS_F32, "f32", 1, 4},
    {ATLAS_F16, "f16", 1, 2},
    {ATLAS_BF16, "bf16", 1, 2},
    {ATLAS_I8, "i8", 1, 1},
    {ATLAS_U8, "u8", 1, 1},
    {ATLAS_I16, "i16", 1, 2},
    {ATLAS_I32, "i32", 1, 4},
    {ATLAS_I64, "i64", 1, 8},
    {ATLAS_F8_E4M3, "f8_e4m3", 1, 1},
    {ATLAS_F8_E5M2, "f8_e5m2", 1, 1},
    {ATLAS_F8_UE8M0, "f8_e8m0", 1, 1},
    {ATLAS_F64, "f64", 1, 8},
    {ATLAS_BOOL, "bool", 1, 1},
    {ATLAS_U16, "u16", 1, 2},
    {ATLAS_U32, "u32", 1, 4},
    {ATLAS_U64, "u64", 1, 8},
    {ATLAS_Q4_0, "q4_0", 32, 18},
    {ATLAS_Q4_1, "q4_1", 32, 20},
    {ATLAS_Q5_0, "q5_0", 32, 22},
    {ATLAS_Q5_1, "q5_1", 32, 24},
    {ATLAS_Q8_0, "q8_0", 32, 34},
    {ATLAS_Q4_K, "q4_k", 256, 144},
    {ATLAS_Q5_K, "q5_k", 256, 176},
    {ATLAS_Q6_K, "q6_k", 256, 210},
};

struct SafetensorsName {
  std::string_view name;
  AtlasDType dtype;
};
constexpr SafetensorsName kSafetensorsNames[] = {
    {"F32", ATLAS_F32},         {"F16", ATLAS_F16},         {"BF16", ATLAS_BF16},
    {"F64", ATLAS_F64},         {"I8", ATLAS_I8},           {"U8", ATLAS_U8},
    {"I16", ATLAS_I16},         {"U16", ATLAS_U16},         {"I32", ATLAS_I32},
    {"U32", ATLAS_U32},         {"I64", ATLAS_I64},         {"U64", ATLAS_U64},
    {"BOOL", ATLAS_BOOL},       {"F8_E4M3", ATLAS_F8_E4M3}, {"F8_E5M2", ATLAS_F8_E5M2},
    {"F8_E8M0", ATLAS_F8_UE8M0}};

constexpr AtlasDType kNotRead = 0xffffffffu;
struct GgmlType {
  uint32_t number;
  std::string_view name;
  AtlasDType dtype;
};
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", ATLAS_F32},    {1, "F16", ATLAS_F16},     {2, "Q4_0", ATLAS_Q4_0},
    {3, "Q4_1", ATLAS_Q4_1},  {6, "Q5_0", ATLAS_Q5_0},   {7, "Q5_1", ATLAS_Q5_1},
    {8, "Q8_0", ATLAS_Q8_0},  {9, "Q8_1", kNotRead},     {10, "Q2_K", kNotRead},
    {11, "Q3_K", kNotRead},   {12, "Q4_K", ATLAS_Q4_K},  {13, "Q5_K", ATLAS_Q5_K},
    {14, "Q6_K", ATLAS_Q6_K}, {15, "Q8_K", kNotRead},    {16, "IQ2_XXS", kNotRead},
    {17, "IQ2_XS", kNotRead}, {18, "IQ3_XXS", kNotRead}, {19, "IQ1_S", kNotRead},
    {20, "IQ4_NL", kNotRead}, {21, "IQ3_S", kNotRead},   {22, "IQ2_S", kNotRead},
    {23, "IQ4_XS", kNotRead}, {24, "I8", ATLAS_I8},      {25, "I16", ATLAS_I16},
    {26, "I32", ATLAS_I32},   {27, "I64", ATLAS_I64},    {28, "F64", ATLAS_F64},
    {29, "IQ1_M", kNotRead},  {30, "BF16", ATLAS_BF16},  {34, "TQ1_0", kNotRead},
    {35, "TQ2_0", kNotRead},  {39, "MXFP4", kNotRead},   {40, "NVFP4", kNotRead},
};

}  // namespace

const DTypeInfo* dtype_info(AtlasDType dtype) {
  for (const DTypeInfo& info : kTypes) {
    if (info.dtype == dtype) return &info;
  }
  return nullptr;
}

std::string_view dtype_name(AtlasDType dtype) {
  const DTypeInfo* info = dtype_info(dtype);
  return info != nullptr ? info->name : "unknown";
}

std::optional<AtlasDType> dtype_from_safetensors(std::string_view name) {
  for (const SafetensorsName& entry : kSafetensorsNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

std::string_view safetensors_dtype_names() {
  return "F32, F16, BF16, F64, I8, U8, I16, U16, I32, U32, I64, U64, BOOL, F8_E4M3, F8_E5M2, "
         "F8_E8M0";
}

std::optional<AtlasDType> dtype_from_ggml(uint32_t type) {
  for (const GgmlType& entry : kGgmlTypes) {
    if (entry.number == type && entry.dtype != kNotRead) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<uint32_t> ggml_from_dtype(AtlasDType dtype) {
  for (const GgmlType& entry : kGgmlTypes) {
    if (entry.dtype == dtype) return entry.number;
  }
  return std::nullopt;
}

std::string_view ggml_type_name(uint32_t type) {
  for (const GgmlType& entry : kGgmlTypes) {
    if (entry.number == type) return entry.name;
  }
  return {};
}

std::string_view ggml_dtype_names() {
  return "F32, F16, BF16, F64, I8, I16, I32, I64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K";
}

std::optional<uint64_t> tensor_bytes(const DTypeInfo& info, std::span<const uint64_t> dims) {
  const uint64_t row = dims.empty() ? 1 : dims.back();
  if (row % info.block_elements != 0) return std::nullopt;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(row / info.block_elements, uint64_t{info.block_bytes}, &bytes)) {
    return std::nullopt;
  }
  if (dims.empty()) return bytes;
  for (const uint64_t dim : dims.first(dims.size() - 1)) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace atlas::model
