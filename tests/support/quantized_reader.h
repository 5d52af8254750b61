// A reader of EXL3, NVFP4 (ModelOpt's names) and FP8 checkpoints that follows the formats'
// descriptions number by number. It shares no code with plugins, kernels and atlas-quantize.
#pragma once

#include <bit>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/exl3_reference.h"
#include "tests/support/scaled_weights.h"
#include "tests/unit/checkpoint/safetensors_folder.h"

namespace atlas::testing {

class QuantizedReader {
 public:
  explicit QuantizedReader(const std::string& path) : tensors_(read_file_tensors(path)) {}

  const FileTensors& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }

  /// Names of the quantized modules, with the format: "exl3", "nvfp4", "fp8".
  std::map<std::string, std::string> modules() const {
    std::map<std::string, std::string> found;
    for (const auto& [name, tensor] : tensors_) {
      const std::string module = name.substr(0, name.rfind('.'));
      if (name.ends_with(".trellis")) found[module] = "exl3";
      if (name.ends_with(".weight_scale_2")) found[module] = "nvfp4";
      if (name.ends_with(".weight_scale_inv")) found[module] = "fp8";
    }
    return found;
  }

  /// W [n, k] as a model has it, without padding, row-major.
  std::vector<double> weight(const std::string& module, uint64_t n, uint64_t k) const {
    const std::string format = modules().at(module);
    std::vector<double> values;
    if (format == "exl3") {
      const test::SlowMatrix matrix = trellis(module);
      const std::vector<double> padded = matrix.outer();
      if (n > matrix.n || k > matrix.k) throw std::runtime_error(module + " is too small");
      for (uint64_t row = 0; row < n; ++row) {
        const double* from = padded.data() + row * matrix.k;
        values.insert(values.end(), from, from + k);
      }
      return values;
    }
    for (uint64_t row = 0; row < n; ++row) {
      for (uint64_t column = 0; column < k; ++column) {
        values.push_back(format == "nvfp4" ? nvfp4(module, row, column, k)
                                           : fp8(module, row, column, k));
      }
    }
    return values;
  }

  /// An EXL3 module with its padding; the codebook is its marker's.
  test::SlowMatrix trellis(const std::string& module) const {
    std::string codebook = "3inst";
    for (const auto& [name, multiplier] :
         {std::pair{"mul1", 2212286765u}, std::pair{"mcg", 3417055213u}}) {
      if (!has(module + "." + name)) continue;
      if (words<uint32_t>(module + "." + name).at(0) != multiplier) {
        throw std::runtime_error(module + " has another multiplier");
      }
      codebook = name;
    }
    const std::vector<uint64_t>& shape = tensors_.at(module + ".trellis").shape;
    test::SlowMatrix matrix(codebook, shape.at(2), words<uint16_t>(module + ".trellis"),
                            words<uint16_t>(module + ".suh"), words<uint16_t>(module + ".svh"));
    if (matrix.k != 16 * shape.at(0) || matrix.n != 16 * shape.at(1)) {
      throw std::runtime_error(module + " has scales of another size");
    }
    return matrix;
  }

 private:
  template <typename Word>
  std::vector<Word> words(const std::string& name) const {
    const std::string& data = tensors_.at(name).data;
    std::vector<Word> out(data.size() / sizeof(Word));
    std::memcpy(out.data(), data.data(), data.size());
    return out;
  }
  uint8_t byte(const std::string& name, uint64_t at) const {
    return static_cast<uint8_t>(tensors_.at(name).data.at(at));
  }
  double number(const std::string& name, uint64_t at) const {
    if (tensors_.at(name).dtype == "BF16") {
      return std::bit_cast<float>(uint32_t{words<uint16_t>(name).at(at)} << 16);
    }
    return std::bit_cast<float>(words<uint32_t>(name).at(at));
  }
  double nvfp4(const std::string& module, uint64_t row, uint64_t column, uint64_t k) const {
    const uint8_t pair = byte(module + ".weight", (row * k + column) / 2);
    return test::number_e2m1(column % 2 == 0 ? pair & 15 : pair >> 4) *
           test::number_e4m3(byte(module + ".weight_scale", (row * k + column) / 16)) *
           number(module + ".weight_scale_2", 0);
  }
  double fp8(const std::string& module, uint64_t row, uint64_t column, uint64_t k) const {
    return test::number_e4m3(byte(module + ".weight", row * k + column)) *
           number(module + ".weight_scale_inv", row / 128 * ((k + 127) / 128) + column / 128);
  }

  FileTensors tensors_;
};

}  // namespace atlas::testing
