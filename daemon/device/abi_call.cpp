// Codes and names of the ABI as the daemon says them.
#include "daemon/device/abi_call.h"

#include <cstring>

namespace atlas::abi {

Status to_status(std::string_view context, AtlasCode code, const AtlasError& error) {
  const bool known = code >= ATLAS_OK && code <= ATLAS_DATA_LOSS;
  const size_t length = ::strnlen(error.message, sizeof(error.message));
  const std::string_view message(error.message, length);
  return Status(
      known ? static_cast<Code>(code) : Code::kUnknown,
      fmt::format("{}: {}", context, message.empty() ? "failed and gave no reason" : message));
}

std::string_view dtype_name(AtlasDType dtype) {
  switch (dtype) {
    case ATLAS_F32:
      return "f32";
    case ATLAS_F16:
      return "f16";
    case ATLAS_BF16:
      return "bf16";
    case ATLAS_I8:
      return "i8";
    case ATLAS_U8:
      return "u8";
    case ATLAS_I16:
      return "i16";
    case ATLAS_I32:
      return "i32";
    case ATLAS_I64:
      return "i64";
    case ATLAS_F8_E4M3:
      return "f8_e4m3";
    case ATLAS_F8_E5M2:
      return "f8_e5m2";
    case ATLAS_F8_UE8M0:
      return "f8_ue8m0";
    case ATLAS_F64:
      return "f64";
    case ATLAS_BOOL:
      return "bool";
    case ATLAS_U16:
      return "u16";
    case ATLAS_U32:
      return "u32";
    case ATLAS_U64:
      return "u64";
    case ATLAS_Q4_0:
      return "q4_0";
    case ATLAS_Q4_1:
      return "q4_1";
    case ATLAS_Q5_0:
      return "q5_0";
    case ATLAS_Q5_1:
      return "q5_1";
    case ATLAS_Q8_0:
      return "q8_0";
    case ATLAS_Q4_K:
      return "q4_k";
    case ATLAS_Q5_K:
      return "q5_k";
    case ATLAS_Q6_K:
      return "q6_k";
    default:
      return "unknown";
  }
}

}  // namespace atlas::abi
