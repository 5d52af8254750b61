// Any bytes as a GGUF file: header, tensors under their new names, configuration, vocabulary.
#include <cstdint>
#include <cstdlib>

#include "daemon/model/checkpoint/checkpoint_state.h"
#include "daemon/model/checkpoint/dtype.h"
#include "daemon/model/checkpoint/gguf.h"
#include "daemon/model/checkpoint/model_config.h"

using namespace atlas::model;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto file = GgufFile::parse(bytes, "fuzz");
  if (!file) return 0;
  TensorTable table;
  for (TensorInfo tensor : file->tensors()) {
    if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
    if (tensor_bytes(*dtype_info(tensor.dtype), tensor.shape()) != tensor.bytes) std::abort();
    tensor.name = table.intern(huggingface_name(tensor.name));
    table.add(tensor);
  }
  (void)read_gguf_vocabulary(*file).has_value();
  const std::vector<std::string> files{"fuzz"};
  if (!table.seal(files).ok()) return 0;
  std::span<const std::byte> factors;
  if (const TensorInfo* tensor = table.find("rope_freqs.weight")) {
    factors = bytes.subspan(tensor->offset, tensor->bytes);
  }
  const auto config = read_gguf_config(*file, table, factors);
  if (config && config->rope.inverse_frequencies.size() != config->rope.rotary_dim / 2)
    std::abort();
  return 0;
}
