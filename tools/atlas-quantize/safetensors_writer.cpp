#include "tools/atlas-quantize/safetensors_writer.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "daemon/base/input_file.h"
#include "daemon/model/checkpoint/dtype.h"
#include "daemon/model/checkpoint/safetensors.h"

namespace atlas::quantize {

using Json = nlohmann::json;  // not ordered_json, which searches from the front for every key

static_assert(std::endian::native == std::endian::little, "elements are written as they lie");

namespace {

struct TypeName {
  AtlasDType dtype;
  const char* name;
};
constexpr TypeName kTypeNames[] = {
    {ATLAS_F32, "F32"},         {ATLAS_F16, "F16"},         {ATLAS_BF16, "BF16"},
    {ATLAS_F64, "F64"},         {ATLAS_I8, "I8"},           {ATLAS_U8, "U8"},
    {ATLAS_I16, "I16"},         {ATLAS_U16, "U16"},         {ATLAS_I32, "I32"},
    {ATLAS_U32, "U32"},         {ATLAS_I64, "I64"},         {ATLAS_U64, "U64"},
    {ATLAS_BOOL, "BOOL"},       {ATLAS_F8_E4M3, "F8_E4M3"}, {ATLAS_F8_E5M2, "F8_E5M2"},
    {ATLAS_F8_UE8M0, "F8_E8M0"}};

Result<std::string> type_name(AtlasDType dtype) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.dtype == dtype) return std::string(entry.name);
  }
  return unimplemented("safetensors has no name for type {}", model::dtype_name(dtype));
}

struct Sized {
  PlannedTensor tensor;
  uint64_t bytes = 0;
};

Result<std::vector<Sized>> in_order(std::vector<PlannedTensor> tensors) {
  std::vector<Sized> sized;
  for (PlannedTensor& tensor : tensors) {
    const auto bytes = model::tensor_bytes(*model::dtype_info(tensor.dtype), tensor.dims);
    if (!bytes) return invalid_argument("tensor '{}' is too large", tensor.name);
    sized.push_back({std::move(tensor), *bytes});
  }
  std::sort(sized.begin(), sized.end(), [](const Sized& a, const Sized& b) {
    const uint32_t a_bytes = model::dtype_info(a.tensor.dtype)->block_bytes;
    const uint32_t b_bytes = model::dtype_info(b.tensor.dtype)->block_bytes;
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.tensor.name < b.tensor.name;
  });
  return sized;
}

Result<std::string> header_of(const std::vector<Sized>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const Sized& sized : tensors) {
    ATLAS_ASSIGN_OR_RETURN(const std::string type, type_name(sized.tensor.dtype));
    header[sized.tensor.name] = {{"dtype", type},
                                 {"shape", sized.tensor.dims},
                                 {"data_offsets", {offset, offset + sized.bytes}}};
    offset += sized.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the data begins at a multiple of 8
  return text;
}

/// A file that is removed unless it was finished.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), temporary_(path + ".part"), file_(std::fopen(temporary_.c_str(), "wb")) {}
  ~NewFile() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  Status write(const void* data, size_t bytes) {
    if (file_ != nullptr && std::fwrite(data, 1, bytes, file_) == bytes) return {};
    return failed();
  }
  Status finish() {
    if (file_ == nullptr || std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) {
      return failed();
    }
    const bool closed = std::fclose(file_) == 0;
    file_ = nullptr;
    if (closed && std::rename(temporary_.c_str(), path_.c_str()) == 0) return {};
    return failed();
  }

 private:
  Status failed() const {
    return invalid_argument("cannot write '{}': {}", path_, std::strerror(errno));
  }
  std::string path_, temporary_;
  std::FILE* file_;
};

}  // namespace

Status write_safetensors(const std::string& path, std::vector<PlannedTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<Sized> sized, in_order(std::move(tensors)));
  ATLAS_ASSIGN_OR_RETURN(const std::string header, header_of(sized, metadata));
  NewFile file(path);
  const uint64_t length = header.size();
  ATLAS_RETURN_IF_ERROR(file.write(&length, sizeof(length)));
  ATLAS_RETURN_IF_ERROR(file.write(header.data(), header.size()));
  for (const Sized& one : sized) {
    ATLAS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, one.tensor.bytes());
    if (bytes.size() != one.bytes) {
      return internal_error("tensor '{}' has {} bytes; its shape says {}", one.tensor.name,
                            bytes.size(), one.bytes);
    }
    ATLAS_RETURN_IF_ERROR(file.write(bytes.data(), bytes.size()));
  }
  return file.finish();
}

std::vector<PlannedTensor> planned(std::vector<EncodedTensor> tensors) {
  std::vector<PlannedTensor> out;
  for (EncodedTensor& tensor : tensors) {
    auto bytes = std::make_shared<std::vector<std::byte>>(std::move(tensor.bytes));
    out.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.dims),
                   [bytes]() -> Result<std::vector<std::byte>> { return *bytes; }});
  }
  return out;
}

Status write_text_file(const std::string& path, const std::string& text) {
  NewFile file(path);
  ATLAS_RETURN_IF_ERROR(file.write(text.data(), text.size()));
  return file.finish();
}

Result<std::vector<std::string>> tensor_names(const std::string& path) {
  ATLAS_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path));
  model::TensorTable table;
  const auto summary = model::read_safetensors(file, 0, &table);
  if (!summary) return summary.error();
  std::vector<std::string> names;
  for (const model::TensorInfo& tensor : table.tensors()) names.emplace_back(tensor.name);
  return names;
}

std::string safetensors_index(const std::map<std::string, std::string>& files,
                              uint64_t total_bytes) {
  Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", Json::object()}};
  for (const auto& [tensor, file] : files) index["weight_map"][tensor] = file;
  return index.dump(2) + "\n";
}

}  // namespace atlas::quantize
