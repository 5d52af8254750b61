// A quantization plugin as tests drive it: its table, and a small host around it that packs a
// weight, collects records, puts addresses into them and runs them with the CPU pack.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "plugins/abi/atlas_plugin.h"
#include "tests/support/cpu_pack.h"

namespace atlas::test {

class QuantPlugin {
 public:
  /// `file`: "quant_gguf.so". Throws std::runtime_error.
  explicit QuantPlugin(const std::string& file) {
    const std::string path = ATLAS_BINARY_DIR "/lib/atlas/plugins/" + file;
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<AtlasPluginEntry>(dlsym(handle, ATLAS_PLUGIN_ENTRY));
    AtlasHost host{};
    host.struct_size = sizeof(host);
    host.abi_major = ATLAS_ABI_MAJOR;
    host.abi_minor = ATLAS_ABI_MINOR;
    AtlasError error{sizeof(AtlasError), {}};
    plugin = entry(&host, &error);
    if (plugin == nullptr) throw std::runtime_error(error.message);
    api = *plugin->quant;
  }
  const AtlasPlugin* plugin = nullptr;
  AtlasQuantApi api{};
};

/// The answer of a call: its code and its message.
struct Answer {
  AtlasCode code;
  std::string message;
};

template <typename Call>
Answer answer_of(const Call& call) {
  AtlasError error{sizeof(AtlasError), {}};
  const AtlasCode code = call(&error);
  return {code, error.message};
}

/// A tensor beside the first one of a module.
struct MoreTensor {
  std::string name;  // "weight_scale"
  AtlasDType dtype;
  std::vector<uint64_t> dims;
  std::vector<uint8_t> bytes;
};

/// One tensor `module`.weight (or another `name`), those beside it, and the query for them.
struct WeightFile {
  WeightFile(std::string module_name, AtlasDType dtype, uint64_t n, uint64_t k, const void* data,
             uint64_t bytes, const std::string& name = "weight",
             std::vector<MoreTensor> beside = {})
      : module(std::move(module_name)), tensor_name(module + "." + name), more(std::move(beside)) {
    tensor.struct_size = sizeof(tensor);
    tensor.dtype = dtype;
    tensor.name = tensor_name.c_str();
    tensor.rank = 2;
    tensor.dims[0] = n;
    tensor.dims[1] = k;
    tensor.bytes = bytes;
    tensor.data = data;
    query.struct_size = sizeof(query);
    query.tensor_count = 1;
    query.platform = "cpu";
    query.module = module.c_str();
    query.tensors = &tensor;
    if (!more.empty()) list_all();
  }
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  /// Makes the query list `tensor` as it is now, and all of `more` behind it.
  void list_all() {
    all = {tensor};
    names.clear();
    for (const MoreTensor& one : more) names.push_back(module + "." + one.name);
    for (size_t i = 0; i < more.size(); ++i) {
      AtlasTensor each{};
      each.struct_size = sizeof(each);
      each.dtype = more[i].dtype;
      each.name = names[i].c_str();
      each.rank = static_cast<uint32_t>(more[i].dims.size());
      for (size_t d = 0; d < more[i].dims.size(); ++d) each.dims[d] = more[i].dims[d];
      each.bytes = more[i].bytes.size();
      each.data = more[i].bytes.data();
      all.push_back(each);
    }
    query.tensors = all.data();
    query.tensor_count = static_cast<uint32_t>(all.size());
  }

  std::string module, tensor_name;
  AtlasTensor tensor{};
  std::vector<MoreTensor> more;
  std::vector<std::string> names;
  std::vector<AtlasTensor> all;
  AtlasWeightQuery query{};
};

/// A record that was emitted, with its own copy of the parameters.
struct Emitted {
  std::string kernel;
  uint64_t digest;
  uint32_t tasks, shared_bytes;
  uint64_t bytes_read;
  std::vector<std::byte> params;
  std::vector<AtlasRelocation> relocations;
};

/// Buffers by id, and records over them.
class RecordRunner {
 public:
  RecordRunner() {
    sink.struct_size = sizeof(sink);
    sink.context = this;
    sink.emit = [](void* context, const AtlasRecord* record, AtlasError*) -> AtlasCode {
      static_cast<RecordRunner*>(context)->take(*record);
      return ATLAS_OK;
    };
  }
  RecordRunner(const RecordRunner&) = delete;
  RecordRunner& operator=(const RecordRunner&) = delete;

  AtlasBufferRef buffer(const void* memory) {
    memory_.push_back(memory);
    return {static_cast<uint32_t>(memory_.size() - 1), 0, 0};
  }

  /// Runs what was emitted since the last call, in order.
  void run(const CpuPack& pack, Split split) {
    for (Emitted& record : emitted) {
      for (const AtlasRelocation& relocation : record.relocations) {
        const auto* address = static_cast<const std::byte*>(memory_[relocation.target.buffer]) +
                              relocation.target.offset;
        std::memcpy(record.params.data() + relocation.param_offset, &address, sizeof(address));
      }
      if (pack.params_digest(record.kernel) != record.digest) {
        throw std::runtime_error("digest of " + record.kernel + " differs");
      }
      pack.run_raw(record.kernel, record.params.data(), record.tasks, split, record.shared_bytes);
    }
    emitted.clear();
  }

  AtlasRecordSink sink{};
  std::vector<Emitted> emitted;

 private:
  void take(const AtlasRecord& record) {
    Emitted copy;
    copy.kernel = record.kernel;
    copy.digest = record.params_digest;
    copy.tasks = record.grid[0] * record.grid[1] * record.grid[2];
    copy.shared_bytes = record.shared_bytes;
    copy.bytes_read = record.bytes_read;
    const auto* bytes = static_cast<const std::byte*>(record.params);
    copy.params.assign(bytes, bytes + record.params_size);
    copy.relocations.assign(record.relocations, record.relocations + record.relocation_count);
    emitted.push_back(std::move(copy));
  }
  std::vector<const void*> memory_;
};

}  // namespace atlas::test
