// A module's EXL3 tensors: which they are, whether they fit together, and their resident form.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/common/exl3_gpu.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::quant_exl3 {

/// A format of this plugin: "exl3_k4_mul1", "exl3_k2.5_mul1", "exl3_k3_3inst".
struct Format {
  kernels::Exl3Codebook codebook;
  uint32_t units;  // half bits a weight

  std::string name() const;
};

/// The format of that name. Throws sdk::Failure (ATLAS_UNIMPLEMENTED) if there is none.
Format format_of(const char* name);

/// "3inst", "mcg", "mul1".
const char* codebook_name(kernels::Exl3Codebook codebook);

/// The tensors of one module, checked against each other.
class Tensors {
 public:
  /// Whether `query`'s module has any tensor of this format; a `.trellis` or what belongs to one.
  static bool present(const AtlasWeightQuery& query);
  /// Throws sdk::Failure (ATLAS_INVALID_ARGUMENT, naming the tensor) where tensors are missing,
  /// contradict each other or the shape that the query expects.
  explicit Tensors(const AtlasWeightQuery& query);

  Format format() const { return format_; }
  /// The matrix's sizes: the query's, or the trellis's where the query names none.
  uint64_t n() const { return n_; }
  uint64_t k() const { return k_; }

  /// suh and svh. The tensors have their data; checks what only data shows: multipliers and finite
  /// scales. Throws as the constructor does.
  void write_head(uint8_t* out) const;
  /// Group `group` of 128 outputs.
  void write_group(uint64_t group, uint8_t* out) const;
  /// The same in a GPU's layout.
  void write_gpu_group(kernels::Exl3Lanes lanes, uint64_t group, uint8_t* out) const;

 private:
  void check_sizes(const AtlasWeightQuery& query);
  void check_markers() const;

  const AtlasTensor* trellis_ = nullptr;
  const AtlasTensor* marker_ = nullptr;   // of a codebook
  const AtlasTensor* inputs_ = nullptr;   // suh or su
  const AtlasTensor* outputs_ = nullptr;  // svh or sv
  uint64_t n_ = 0, k_ = 0;
  Format format_{};
};

}  // namespace atlas::quant_exl3
