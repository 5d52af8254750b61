// A model on disk: its tensors (memory-mapped), configuration, tokenizer files and chat template,
// the same for Hugging Face folders and GGUF files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/model_config.h"
#include "daemon/model/checkpoint/tensor_table.h"
#include "daemon/model/tokenizer/tokenizer.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::model {

/// The texts of a Hugging Face folder's tokenizer; empty where a file is absent. The views live as
/// long as the checkpoint.
struct HuggingfaceTokenizer {
  std::string_view tokenizer_json, tokenizer_config_json, generation_config_json;
};

/// Where the tokenizer comes from; nothing: the model is served by token ids.
using TokenizerSource = std::variant<std::monostate, HuggingfaceTokenizer, GgufVocabulary>;

/// Token texts that chat templates name (bos_token, eos_token, ...).
struct SpecialTokens {
  std::optional<std::string> bos, eos, unknown, padding;
};

/// One line of the load log: how many tensors have a type, and their bytes.
struct TypeCount {
  AtlasDType dtype;
  uint64_t tensors, bytes;
};

/// Told after each file of a checkpoint whose header has been read.
using OpenProgress = std::function<void(uint32_t files_done, uint32_t files)>;

struct CheckpointState;

/// An opened checkpoint. Immutable; all calls are thread safe; movable.
/// Tensors carry Hugging Face names in every format. Every header field has been checked: the bytes
/// of each tensor lie inside its file. A file that is cut short while it is in use is an error, of
/// `open` or `read`: replace model files by renaming, never by writing into them.
class Checkpoint {
 public:
  /// Opens `path`: a folder with config.json and model.safetensors or model.safetensors.index.json
  /// with its shards; one .safetensors file beside its config.json; or a .gguf file (any part of a
  /// split one). Reads headers only.
  /// Errors: kNotFound; kInvalidArgument with file, place, what was found and what is expected;
  /// kUnimplemented for an architecture, file version or tensor type that Atlas does not run.
  static Result<Checkpoint> open(const std::string& path, const OpenProgress& progress = {});

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  /// All tensors, ascending by name.
  std::span<const TensorInfo> tensors() const;
  /// The tensor called `name`, or null.
  const TensorInfo* find(std::string_view name) const;
  /// The tensors whose names begin with `module` and a dot, ascending by name.
  std::span<const TensorInfo> with_prefix(std::string_view module) const;

  /// Copies `out.size()` bytes of a tensor of this checkpoint, from byte `offset` of it on.
  /// Errors: kOutOfRange beyond the tensor; kDataLoss if the file was cut short or cannot be read.
  Status read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const;
  /// Says that a tensor's bytes are not needed again, so that they leave the page cache.
  void drop_cache(const TensorInfo& tensor) const;

  const ModelConfig& config() const;
  /// Errors: kInvalidArgument for a GGUF vocabulary with keys of wrong types.
  Result<TokenizerSource> tokenizer_source() const;
  /// The Jinja text of the chat template (the one called "default", if there are several).
  const std::optional<std::string>& chat_template() const;
  const SpecialTokens& special_tokens() const;

  /// Ordered by bytes, most first.
  std::vector<TypeCount> type_histogram() const;
  uint64_t total_bytes() const;
  /// "safetensors" or "gguf v3".
  const std::string& format_name() const;
  /// The files that hold tensors; TensorInfo::file counts in this order.
  std::vector<std::string> files() const;
  /// Oddities that are no errors, for the load log; usually empty.
  const std::vector<std::string>& notes() const;

 private:
  explicit Checkpoint(std::unique_ptr<CheckpointState> state);
  std::unique_ptr<const CheckpointState> state_;
};

/// `tensor` as plugins see it, without its data. Errors: kUnimplemented for more than 4 dimensions.
Result<AtlasTensor> to_abi_tensor(const TensorInfo& tensor);

}  // namespace atlas::model
