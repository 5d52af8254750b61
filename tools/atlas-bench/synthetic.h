// Models of a released model's true shapes without its weights: a checkpoint whose data are holes,
// and contents that are drawn while they are loaded. Speed depends on shapes and formats, not on
// what weights say, as long as they are random and valid.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/plan/planner.h"

namespace atlas::bench {

/// Whether there are synthetic weights of a format for a whole model (`check_model_quant`) or a
/// single product, and a synthetic model of a name. Errors: kInvalidArgument names what is known.
Status check_model_quant(const std::string& quant);
Status check_matrix_quant(const std::string& quant);
Status check_model(const std::string& model);

/// Writes config.json and model.safetensors (a header and a hole: it takes no room on the disk) of
/// `model` ("qwen3.8-flash-next") into `folder`, which exists. `quant`: "bf16"; "fp8" (experts in
/// 128 x 128 blocks) or "nvfp4" (experts of the trunk; the draft head's in fp8), as the releases of
/// these names store them; "exl3:B", B from 2 to less than 6: experts of floor(B) bits, dense
/// matrices and head of two more, as ExLlamaV3's own conversions have them. The n-gram table has
/// 20,000 rows a head instead of 20 million. Errors: kInvalidArgument names what is known.
Status write_synthetic_checkpoint(const std::string& model, const std::string& quant,
                                  const std::string& folder);

/// A tensor of a checkpoint, without its contents.
struct SyntheticTensor {
  std::string name;
  AtlasDType dtype = ATLAS_BF16;
  std::vector<uint64_t> dims;
  uint64_t bytes() const;
};

/// The tensors of one matrix of `n` outputs and `k` inputs as a checkpoint stores it as `quant`:
/// "bf16", "fp8" (128 x 128 blocks), "nvfp4", or "exl3:B" with floor(B) bits, B from 1 to less than
/// 9 (sizes padded to multiples of 128). Errors: kInvalidArgument for another format, or inputs
/// that it cannot have.
Result<std::vector<SyntheticTensor>> synthetic_matrix(const std::string& quant,
                                                      const std::string& module, uint64_t n,
                                                      uint64_t k);

/// `shapes` with drawn contents, the same for every call: matrices such that activations keep their
/// size, valid scales and signs. Thread safe.
std::shared_ptr<const plan::WeightSource> synthetic_weights(
    std::shared_ptr<const plan::WeightSource> shapes);

}  // namespace atlas::bench
