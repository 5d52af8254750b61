// Reads a GGUF file: its metadata and where its tensors lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "daemon/base/input_file.h"
#include "daemon/base/status.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {

/// Numbers of the value types in GGUF metadata.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

/// The largest header (metadata and tensor records) that is read.
inline constexpr uint64_t kMaxGgufHeader = 512ull << 20;

/// The header of a GGUF file, checked against the file's size in every field. Reads versions 2 and
/// 3, little-endian.
class GgufFile {
 public:
  /// Reads the header of `file`, which need not be kept.
  /// Errors: kInvalidArgument with the place that is broken; kUnimplemented for version 1,
  /// big-endian files and tensor types that Atlas does not read; kDataLoss if the file was cut
  /// short since it was opened.
  static Result<GgufFile> read(const InputFile& file);
  /// The same of a file whose bytes are in memory, and stay there. `path` is for messages.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string path);

  uint32_t version() const { return version_; }
  const std::string& path() const { return path_; }
  bool has(std::string_view key) const { return values_.contains(key); }

  /// The value of `key`, or nothing if the key is absent; kInvalidArgument if it has another type.
  /// Any integer type serves as an integer, and as a number; an array of equal integers counts as
  /// that integer (some writers give each layer its own).
  Result<std::optional<uint64_t>> integer(std::string_view key) const;
  Result<std::optional<double>> number(std::string_view key) const;
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string_view>> text(std::string_view key) const;
  Result<std::optional<std::vector<std::string_view>>> texts(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> integers(std::string_view key) const;
  /// Element `index` of an array of strings; nothing if it is not there.
  std::optional<std::string_view> text_at(std::string_view key, uint64_t index) const;
  /// Elements of an array; 0 if `key` is absent or no array.
  uint64_t array_size(std::string_view key) const;

  /// Tensors under the file's own names, dims outermost first, offsets from the start of the file.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  /// Tensors whose offset their element size does not divide, for the load log.
  uint64_t misaligned() const { return misaligned_; }

 private:
  friend class GgufParser;
  /// A scalar's or array's bytes in the file; for arrays without the type and count before them.
  struct Value {
    GgufType type = GgufType::kU8;
    GgufType element = GgufType::kU8;
    uint64_t count = 1;
    std::span<const std::byte> bytes;
  };
  const Value* find(std::string_view key) const;
  Status wrong_type(std::string_view key, const Value& value, std::string_view expected) const;

  std::string path_;
  std::vector<std::byte> header_;  ///< what the views point into, unless the caller keeps it
  uint32_t version_ = 0;
  uint64_t misaligned_ = 0;
  std::unordered_map<std::string_view, Value> values_;
  std::vector<TensorInfo> tensors_;
};

/// The Hugging Face name of a llama tensor's GGUF name, as model programs know it:
/// "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight". Others stay as they are.
std::string huggingface_name(std::string_view gguf_name);

}  // namespace atlas::model
