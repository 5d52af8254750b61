// Picks the reader for a path and answers questions about what it found.
#include "daemon/model/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "daemon/model/checkpoint/checkpoint_state.h"
#include "daemon/model/checkpoint/dtype.h"

namespace atlas::model {

namespace fs = std::filesystem;

Checkpoint::Checkpoint(std::unique_ptr<CheckpointState> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& path, const OpenProgress& progress) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return not_found("there is no model at '{}'", path);
  }
  if (error) return invalid_argument("cannot look at '{}': {}", path, error.message());
  auto state = std::make_unique<CheckpointState>();
  if (fs::is_directory(status)) {
    ATLAS_RETURN_IF_ERROR(read_huggingface_folder(path, "", progress, state.get()));
  } else if (path.ends_with(".safetensors")) {
    const fs::path file(path);
    const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
    ATLAS_RETURN_IF_ERROR(read_huggingface_folder(folder, path, progress, state.get()));
  } else if (path.ends_with(".gguf")) {
    ATLAS_RETURN_IF_ERROR(read_gguf_checkpoint(path, progress, state.get()));
  } else {
    return invalid_argument(
        "'{}' is neither a folder nor a .safetensors or .gguf file: a model is one of these", path);
  }
  return Checkpoint(std::move(state));
}

std::span<const TensorInfo> Checkpoint::tensors() const { return state_->table.tensors(); }

const TensorInfo* Checkpoint::find(std::string_view name) const { return state_->table.find(name); }

std::span<const TensorInfo> Checkpoint::with_prefix(std::string_view module) const {
  return state_->table.with_prefix(module);
}

Status Checkpoint::read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const {
  if (offset > tensor.bytes || out.size() > tensor.bytes - offset) {
    return out_of_range("tensor '{}' has {} bytes: {} at offset {} lie outside of it", tensor.name,
                        tensor.bytes, out.size(), offset);
  }
  const Status status = state_->files[tensor.file].read_at(tensor.offset + offset, out);
  return status.with_context(fmt::format("tensor '{}'", tensor.name));
}

void Checkpoint::drop_cache(const TensorInfo& tensor) const {
  state_->files[tensor.file].drop_cache(tensor.offset, tensor.bytes);
}

const ModelConfig& Checkpoint::config() const { return state_->config; }

Result<TokenizerSource> Checkpoint::tokenizer_source() const {
  if (state_->gguf != nullptr) return read_gguf_vocabulary(*state_->gguf);
  if (state_->tokenizer_json.text.empty()) return TokenizerSource();
  return TokenizerSource(HuggingfaceTokenizer{state_->tokenizer_json.text,
                                              state_->tokenizer_config_json.text,
                                              state_->generation_config_json.text});
}

const std::optional<std::string>& Checkpoint::chat_template() const {
  return state_->chat_template;
}

const SpecialTokens& Checkpoint::special_tokens() const { return state_->special_tokens; }

std::vector<TypeCount> Checkpoint::type_histogram() const {
  std::vector<TypeCount> counts;
  for (const TensorInfo& tensor : tensors()) {
    auto place = std::find_if(counts.begin(), counts.end(),
                              [&](const TypeCount& count) { return count.dtype == tensor.dtype; });
    if (place == counts.end()) place = counts.insert(place, {tensor.dtype, 0, 0});
    ++place->tensors;
    place->bytes += tensor.bytes;
  }
  std::sort(counts.begin(), counts.end(), [](const TypeCount& a, const TypeCount& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.dtype < b.dtype;
  });
  return counts;
}

uint64_t Checkpoint::total_bytes() const {
  uint64_t bytes = 0;
  for (const TensorInfo& tensor : tensors()) bytes += tensor.bytes;
  return bytes;
}

const std::string& Checkpoint::format_name() const { return state_->format_name; }
std::vector<std::string> Checkpoint::files() const { return state_->paths(); }
const std::vector<std::string>& Checkpoint::notes() const { return state_->notes; }

std::vector<std::string> CheckpointState::paths() const {
  std::vector<std::string> out;
  out.reserve(files.size());
  for (const InputFile& file : files) out.push_back(file.path());
  return out;
}

Result<AtlasTensor> to_abi_tensor(const TensorInfo& tensor) {
  AtlasTensor out{};
  if (tensor.rank > std::size(out.dims)) {
    return unimplemented("tensor '{}' has {} dimensions; plugins take {}", tensor.name, tensor.rank,
                         std::size(out.dims));
  }
  out.struct_size = sizeof(out);
  out.dtype = tensor.dtype;
  out.name = tensor.name.data();
  out.rank = tensor.rank;
  std::copy_n(tensor.dims.begin(), tensor.rank, out.dims);
  out.bytes = tensor.bytes;
  return out;
}

}  // namespace atlas::model
