// What the checkpoint tests share: files as strings, and checks of what every reader promises.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/checkpoint.h"
#include "daemon/model/checkpoint/dtype.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::testing {

inline std::string golden_path(const std::string& name) {
  return std::string(ATLAS_SOURCE_DIR "/tests/golden/checkpoint/") + name;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file, path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  REQUIRE(file.flush());
}

inline std::vector<std::byte> data_of(const model::Checkpoint& checkpoint,
                                      const model::TensorInfo& tensor) {
  std::vector<std::byte> data(tensor.bytes);
  REQUIRE(checkpoint.read(tensor, 0, data).ok());
  return data;
}

inline const nlohmann::json& golden() {
  static const nlohmann::json tree = nlohmann::json::parse(read_text(golden_path("golden.json")));
  return tree;
}

/// A copy on the heap of exactly the text's size, so that a sanitizer sees reads past its end.
class Bytes {
 public:
  explicit Bytes(std::string_view text) : bytes_(text.size()) {
    if (!text.empty()) std::memcpy(bytes_.data(), text.data(), text.size());
  }
  std::span<const std::byte> span() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

inline std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) out += fmt::format("{:02x}", static_cast<unsigned>(b));
  return out;
}

/// What a reader promises of tensors that it accepts: inside the file, as large as they say.
inline void check_tensors(std::span<const model::TensorInfo> tensors, uint64_t file_bytes) {
  for (const model::TensorInfo& tensor : tensors) {
    const model::DTypeInfo* info = model::dtype_info(tensor.dtype);
    REQUIRE(info != nullptr);
    REQUIRE(tensor.rank <= model::TensorInfo::kMaxRank);
    REQUIRE(tensor.offset <= file_bytes);
    REQUIRE(tensor.bytes <= file_bytes - tensor.offset);
    REQUIRE(model::tensor_bytes(*info, tensor.shape()) == tensor.bytes);
  }
}

/// The message of a failed result, which must hold each of `parts`.
template <typename T>
void check_error(const Result<T>& result, Code code, std::initializer_list<const char*> parts) {
  REQUIRE_FALSE(result);
  CHECK_MESSAGE(result.error().code() == code, result.error().to_string());
  for (const char* part : parts) {
    CHECK_MESSAGE(result.error().message().find(part) != std::string::npos,
                  result.error().message(), " lacks ", std::string(part));
  }
}

}  // namespace atlas::testing
