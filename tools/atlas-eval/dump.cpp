#include "tools/atlas-eval/dump.h"

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "tools/common/json.h"

namespace atlas::eval {

namespace fs = std::filesystem;
using tools::Json;

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie");

namespace {

Status make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return invalid_argument("cannot make folder '{}': {}", folder, error.message());
  const bool empty = fs::is_empty(folder, error);
  if (error) return invalid_argument("cannot read folder '{}': {}", folder, error.message());
  if (!empty) {
    return invalid_argument(
        "'{}' is not empty: name a new folder, so that no file of another dump "
        "is taken for one of this",
        folder);
  }
  return {};
}

Status write_bytes(const std::string& path, const void* data, size_t bytes) {
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "wb"),
                                                                &std::fclose);
  if (file == nullptr || std::fwrite(data, 1, bytes, file.get()) != bytes ||
      std::fflush(file.get()) != 0) {
    return invalid_argument("writing '{}' failed: {}", path, std::strerror(errno));
  }
  return {};
}

std::string file_name(const Tensor& tensor) {
  std::string name =
      fmt::format("{:04}.{}.{}.f32", tensor.index, tensor.operation, tensor.activation);
  for (char& c : name) c = c == ' ' || c == '/' ? '_' : c;
  return name;
}

}  // namespace

Result<Dump> write_dump(Tracer& tracer, const std::vector<engine::TokenId>& ids,
                        const std::string& folder, std::optional<uint32_t> layer) {
  ATLAS_RETURN_IF_ERROR(make_folder(folder));
  Dump dump;
  Json tensors = Json::array();
  const std::string wanted = layer ? fmt::format("layers.{}", *layer) : "";
  const auto look = [&](Trace& trace) -> Status {
    for (;;) {
      ATLAS_ASSIGN_OR_RETURN(const std::optional<Tensor> tensor, trace.next());
      if (!tensor) return {};
      if (layer && part_of(tensor->operation) != wanted) continue;
      const std::string name = file_name(*tensor);
      const size_t bytes = tensor->values.size() * sizeof(float);
      ATLAS_RETURN_IF_ERROR(
          write_bytes((fs::path(folder) / name).string(), tensor->values.data(), bytes));
      tensors.push_back({{"operation", tensor->operation},
                         {"activation", tensor->activation},
                         {"first_column", tensor->first_column},
                         {"rows", tensor->rows},
                         {"columns", tensor->columns},
                         {"file", name}});
      ++dump.tensors;
      dump.bytes += bytes;
    }
  };
  ATLAS_RETURN_IF_ERROR(tracer.run(ids, look));
  if (dump.tensors == 0) {
    return invalid_argument("'{}' has no layer {}", tracer.model().info().id, layer.value_or(0));
  }
  const std::string index = tools::json_text({{"model", tracer.model().info().id},
                                              {"fingerprint", tracer.model().info().fingerprint},
                                              {"dtype", "float32"},
                                              {"ids", ids},
                                              {"tensors", tensors}});
  ATLAS_RETURN_IF_ERROR(
      write_bytes((fs::path(folder) / "index.json").string(), index.data(), index.size()));
  return dump;
}

}  // namespace atlas::eval
