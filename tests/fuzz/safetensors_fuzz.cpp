// Any bytes as a safetensors file, as the index of a sharded one, and as a config.json.
#include <cstdint>
#include <cstdlib>

#include "daemon/model/checkpoint/dtype.h"
#include "daemon/model/checkpoint/model_config.h"
#include "daemon/model/checkpoint/safetensors.h"

using namespace atlas::model;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  TensorTable table;
  const std::vector<std::string> files{"fuzz"};
  if (read_safetensors(bytes, files[0], 0, &table) && table.seal(files).ok()) {
    for (const TensorInfo& tensor : table.tensors()) {
      if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
      if (tensor_bytes(*dtype_info(tensor.dtype), tensor.shape()) != tensor.bytes) std::abort();
      if (table.find(tensor.name) != &tensor) std::abort();
    }
  }
  const auto index = read_safetensors_index(text, files[0]);
  if (index) {
    for (const auto& [name, shard] : index->tensors) {
      if (shard >= index->shards.size()) std::abort();
    }
  }
  const auto config = read_huggingface_config(text, files[0], text, files[0]);
  if (config && config->heads % config->kv_heads != 0) std::abort();
  return 0;
}
