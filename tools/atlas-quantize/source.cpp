#include "tools/atlas-quantize/source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "daemon/model/checkpoint/dtype.h"
#include "kernels/common/codecs.h"

namespace atlas::quantize {

namespace fs = std::filesystem;
using model::TensorInfo;

namespace {

using BlockDecoder = void (*)(const uint8_t* block, float* out);

void decode_f32(const uint8_t* block, float* out) {
  *out = kernels::float_from_bits(kernels::load_u32(block));
}
void decode_f16(const uint8_t* block, float* out) { *out = kernels::load_f16(block); }
void decode_bf16(const uint8_t* block, float* out) {
  *out = kernels::bf16_to_f32(kernels::load_u16(block));
}

BlockDecoder decoder_of(AtlasDType dtype) {
  switch (dtype) {
    case ATLAS_F32:
      return &decode_f32;
    case ATLAS_F16:
      return &decode_f16;
    case ATLAS_BF16:
      return &decode_bf16;
    case ATLAS_Q4_0:
      return &kernels::decode_q4_0;
    case ATLAS_Q4_1:
      return &kernels::decode_q4_1;
    case ATLAS_Q5_0:
      return &kernels::decode_q5_0;
    case ATLAS_Q5_1:
      return &kernels::decode_q5_1;
    case ATLAS_Q8_0:
      return &kernels::decode_q8_0;
    case ATLAS_Q4_K:
      return &kernels::decode_q4_k;
    case ATLAS_Q5_K:
      return &kernels::decode_q5_k;
    case ATLAS_Q6_K:
      return &kernels::decode_q6_k;
    default:
      return nullptr;
  }
}

/// Tensors that only quantized checkpoints have.
Status refuse_quantized(const model::Checkpoint& checkpoint, const std::string& path) {
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    for (const std::string_view suffix :
         {".trellis", ".weight_scale", ".weight_scale_inv", ".weight_packed", ".qweight"}) {
      if (!tensor.name.ends_with(suffix)) continue;
      return unimplemented(
          "'{}' is quantized already: it has the tensor '{}'. Give a checkpoint in bf16, f16 or "
          "f32, or a GGUF file",
          path, tensor.name);
    }
  }
  return {};
}

/// Heads of a projection whose rows GGUF's converters permute, or 0.
uint64_t permuted_heads(std::string_view name, const model::ModelConfig& config) {
  if (!config.rope.interleaved) return 0;
  if (name.find(".self_attn.q_proj.") != name.npos) return config.heads;
  if (name.find(".self_attn.k_proj.") != name.npos) return config.kv_heads;
  return 0;
}

}  // namespace

Matrix unpermute_heads(const Matrix& rows, uint64_t heads) {
  Matrix out(rows.rows, rows.columns);
  const uint64_t head = rows.rows / heads, half = head / 2;
  for (uint64_t h = 0; h < heads; ++h) {
    for (uint64_t i = 0; i < half; ++i) {
      for (uint64_t part = 0; part < 2; ++part) {
        const auto from = rows.row(h * head + 2 * i + part);
        std::copy(from.begin(), from.end(), out.row(h * head + part * half + i).begin());
      }
    }
  }
  return out;
}

Result<Source> Source::open(const std::string& path) {
  ATLAS_ASSIGN_OR_RETURN(model::Checkpoint checkpoint, model::Checkpoint::open(path));
  ATLAS_RETURN_IF_ERROR(refuse_quantized(checkpoint, path));
  Source source;
  source.gguf_ = checkpoint.format_name().starts_with("gguf");
  for (const std::string& file : checkpoint.files()) {
    std::error_code error;
    source.fingerprint_ +=
        fmt::format("{}:{};", fs::path(file).filename().string(), fs::file_size(file, error));
  }
  source.checkpoint_ = std::make_shared<const model::Checkpoint>(std::move(checkpoint));
  return source;
}

Result<std::vector<std::byte>> Source::bytes(const TensorInfo& tensor) const {
  std::vector<std::byte> bytes(tensor.bytes);
  ATLAS_RETURN_IF_ERROR(checkpoint_->read(tensor, 0, bytes));
  return bytes;
}

Result<Matrix> Source::read(const TensorInfo& tensor) const {
  const BlockDecoder decode = decoder_of(tensor.dtype);
  if (decode == nullptr) {
    return unimplemented("tensor '{}' is {}: it cannot be read as floats", tensor.name,
                         model::dtype_name(tensor.dtype));
  }
  ATLAS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, this->bytes(tensor));
  const model::DTypeInfo& type = *model::dtype_info(tensor.dtype);
  const uint64_t blocks = bytes.size() / type.block_bytes;
  const uint64_t columns = tensor.rank == 0 ? 1 : tensor.shape().back();
  const uint64_t elements = blocks * type.block_elements;
  if (elements == 0) return invalid_argument("tensor '{}' is empty", tensor.name);
  Matrix out(elements / columns, columns);
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (uint64_t i = 0; i < blocks; ++i) {
    decode(data + i * type.block_bytes, &out.values[i * type.block_elements]);
  }
  for (uint64_t i = 0; i < elements; ++i) {
    if (std::isfinite(out.values[i])) continue;
    return data_loss("tensor '{}' holds {} at row {}, column {}: only finite weights can be used",
                     tensor.name, out.values[i], i / columns, i % columns);
  }
  const uint64_t heads = permuted_heads(tensor.name, checkpoint_->config());
  if (heads == 0) return out;
  // A bias is one row; its elements move as the weight's rows do.
  if (tensor.rank == 1) std::swap(out.rows, out.columns);
  if (out.rows % (2 * heads) != 0) {
    return invalid_argument("tensor '{}' has {} rows, which {} heads of an even size do not share",
                            tensor.name, out.rows, heads);
  }
  out = unpermute_heads(out, heads);
  if (tensor.rank == 1) std::swap(out.rows, out.columns);
  return out;
}

}  // namespace atlas::quantize
