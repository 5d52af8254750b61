// The tensors of one module as a quantization plugin looks at them: found by their last name, and
// described in messages.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/sdk/guard.h"

namespace atlas::sdk {

inline std::string dtype_text(AtlasDType dtype) {
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
    case ATLAS_F8_E4M3:
      return "f8_e4m3";
    case ATLAS_F8_E5M2:
      return "f8_e5m2";
    case ATLAS_F8_UE8M0:
      return "f8_e8m0";
    default:
      return "type " + std::to_string(dtype);
  }
}

/// The shortest text that gives the number back: 1e-42 and -0 are told from 0.
inline std::string number_text(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

/// "model.layers.0.mlp.up_proj.weight (u8 [640, 1280])".
inline std::string describe(const AtlasTensor& tensor) {
  std::string text = std::string(tensor.name) + " (" + dtype_text(tensor.dtype) + " [";
  for (uint32_t i = 0; i < tensor.rank && i < 4; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.dims[i]);
  }
  return text + "])";
}

inline bool has_shape(const AtlasTensor& tensor, std::initializer_list<uint64_t> dims) {
  return tensor.rank == dims.size() && std::equal(dims.begin(), dims.end(), tensor.dims);
}
/// One number, of whatever rank.
inline bool is_scalar(const AtlasTensor& tensor) {
  return tensor.rank <= 4 &&
         std::all_of(tensor.dims, tensor.dims + tensor.rank, [](uint64_t dim) { return dim == 1; });
}

/// Throws Failure unless the tensor has `elements` (below 2^61) of `size` bytes.
inline void check_bytes(const AtlasTensor& tensor, uint64_t elements, uint64_t size) {
  if (tensor.bytes == elements * size) return;
  throw Failure(ATLAS_INVALID_ARGUMENT, describe(tensor) + " has " + std::to_string(tensor.bytes) +
                                            " bytes, not " + std::to_string(elements * size));
}

class ModuleTensors {
 public:
  /// Throws Failure if the query cannot be read.
  explicit ModuleTensors(const AtlasWeightQuery& query) : query_(query) {
    if (query.module == nullptr) fail("a weight query needs a module");
    if (query.tensor_count == 0) return;
    if (query.tensors == nullptr) fail("the query's tensors are null");
    if (query.tensors->struct_size < sizeof(AtlasTensor)) {
      fail("AtlasTensor has " + std::to_string(query.tensors->struct_size) +
           " bytes, this plugin needs " + std::to_string(sizeof(AtlasTensor)));
    }
  }

  /// The tensor `<module>.<name>`, or null.
  const AtlasTensor* find(std::string_view name) const {
    const std::string wanted = name_of(name);
    const auto* at = reinterpret_cast<const char*>(query_.tensors);
    for (uint32_t i = 0; i < query_.tensor_count; ++i) {
      const auto* tensor = reinterpret_cast<const AtlasTensor*>(at);
      if (tensor->name != nullptr && wanted == tensor->name) return tensor;
      at += query_.tensors->struct_size;  // the caller's size, which may be a later version's
    }
    return nullptr;
  }
  /// Throws Failure if the module has one of `others` beside `own`, a tensor of the format that it
  /// was taken for: with tensors of two formats nobody knows which of them is the matrix.
  void refuse_beside(const AtlasTensor& own, std::initializer_list<std::string_view> others) const {
    for (const std::string_view name : others) {
      const AtlasTensor* other = find(name);
      if (other == nullptr || other == &own) continue;
      fail(describe(own) + " has " + describe(*other) +
           " beside it, which belongs to another format: one of the two is too much");
    }
  }
  std::string name_of(std::string_view name) const {
    return std::string(query_.module) + "." + std::string(name);
  }
  const AtlasWeightQuery& query() const { return query_; }

 private:
  [[noreturn]] static void fail(std::string message) {
    throw Failure(ATLAS_INVALID_ARGUMENT, std::move(message));
  }
  const AtlasWeightQuery& query_;
};

}  // namespace atlas::sdk
