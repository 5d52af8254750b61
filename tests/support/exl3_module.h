// The tensors of one EXL3 module, as a plugin's query has them.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plugins/abi/atlas_plugin.h"
#include "tests/support/exl3_reference.h"

namespace atlas::test {

class Exl3Module {
 public:
  explicit Exl3Module(const SlowMatrix& matrix, std::string module = "model.layers.0.mlp.up_proj")
      : name(std::move(module)), matrix_(matrix) {
    add("trellis", ATLAS_I16, {matrix.k / 16, matrix.n / 16, matrix.tile_words()},
        matrix_.words.data());
    add("suh", ATLAS_F16, {matrix.k}, matrix_.suh.data());
    add("svh", ATLAS_F16, {matrix.n}, matrix_.svh.data());
    if (matrix.codebook == "mcg") add("mcg", ATLAS_I32, {}, &mcg);
    if (matrix.codebook == "mul1") add("mul1", ATLAS_I32, {}, &mul1);
  }
  Exl3Module(const Exl3Module&) = delete;
  Exl3Module& operator=(const Exl3Module&) = delete;

  /// A tensor more, for checkpoints that are wrong.
  AtlasTensor& add(const std::string& suffix, AtlasDType dtype, const std::vector<uint64_t>& dims,
                   const void* data) {
    names_.push_back(std::make_unique<std::string>(name + "." + suffix));
    AtlasTensor tensor{};
    tensor.struct_size = sizeof(tensor);
    tensor.dtype = dtype;
    tensor.name = names_.back()->c_str();
    tensor.rank = static_cast<uint32_t>(dims.size());
    tensor.bytes = dtype == ATLAS_I32 ? 4 : 2;
    for (size_t i = 0; i < dims.size(); ++i) {
      tensor.dims[i] = dims[i];
      tensor.bytes *= dims[i];
    }
    tensor.data = data;
    tensors.push_back(tensor);
    return tensors.back();
  }
  AtlasTensor& at(const std::string& suffix) {
    for (AtlasTensor& tensor : tensors) {
      if (tensor.name == name + "." + suffix) return tensor;
    }
    throw std::runtime_error("no tensor " + suffix);
  }
  void remove(const std::string& suffix) {
    tensors.erase(tensors.begin() + (&at(suffix) - tensors.data()));
  }

  AtlasWeightQuery query() const {
    AtlasWeightQuery query{};
    query.struct_size = sizeof(query);
    query.tensor_count = static_cast<uint32_t>(tensors.size());
    query.platform = "cpu";
    query.module = name.c_str();
    query.tensors = tensors.data();
    return query;
  }

  std::string name;
  std::vector<AtlasTensor> tensors;
  uint32_t mcg = 0xcbac1fed, mul1 = 0x83dcd12d;

 private:
  const SlowMatrix matrix_;
  std::vector<std::unique_ptr<std::string>> names_;
};

}  // namespace atlas::test
