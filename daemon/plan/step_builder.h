// StepBuilder: how a model program says what a step computes, in the order the data flows.
// It names weights by module and activations by name; it knows no platform and no weight format.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "daemon/plan/plan.h"

namespace atlas::plan {

/// Which count of the control block bounds the rows of a value.
enum class RowDomain { kRows, kLogitRows };

/// Float32 columns of an activation: [rows, width] inside rows of `stride` elements.
struct Value {
  uint32_t activation = 0;  // index in StepProgram::activations
  uint64_t first = 0;       // column
  uint64_t width = 0;
  uint64_t stride = 0;
  RowDomain domain = RowDomain::kRows;
  /// Columns [begin, begin + count) of this value.
  Value columns(uint64_t begin, uint64_t count) const;
};

struct Activation {
  std::string name;
  uint64_t width = 0;
  RowDomain domain = RowDomain::kRows;
};

/// A matrix of the checkpoint: n outputs, k inputs; 0 takes what the checkpoint has.
struct WeightName {
  std::string module;
  uint64_t n = 0, k = 0;
};

struct VectorName {
  std::string tensor;  // of the checkpoint, or a name for `values`
  uint64_t n = 0;
  std::vector<float> values;  // empty: read the tensor
};

struct EmbedOp {
  WeightName weight;
  Value y;
};
struct RmsNormOp {
  Value x;
  VectorName weight;
  float epsilon = 0;
  Value y;
};
/// y = x [W1; W2; ...]^T, the weights' outputs side by side; `add` adds to y instead.
struct LinearOp {
  Value x;
  std::vector<WeightName> weights;
  Value y;
  bool add = false;
};
struct AddBiasOp {
  VectorName bias;
  Value y;
};
struct RopeOp {
  Value x;
  uint32_t heads = 0, head_dim = 0, rotary_dim = 0;
  bool interleaved = false;
  float magnitude = 1.0f;
  VectorName inverse_frequencies;
};
struct AttentionOp {
  std::string backend;
  uint32_t layer = 0;  // among the layers of this backend
  Value q, k, v, out;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;
};
struct SiluMulOp {
  Value x;  // gate, then up
  Value y;
};
struct SelectLogitRowsOp {
  Value x, y;
};
struct SampleOp {
  Value logits;
};

using Operation = std::variant<EmbedOp, RmsNormOp, LinearOp, AddBiasOp, RopeOp, AttentionOp,
                               SiluMulOp, SelectLogitRowsOp, SampleOp>;

struct NamedOperation {
  std::string name;
  Operation operation;
};

/// A model's step as operations; the same for all buckets.
struct StepProgram {
  std::vector<Activation> activations;
  std::vector<NamedOperation> operations;
  uint32_t vocab = 0;
};

class StepBuilder {
 public:
  /// Names of the operations that follow begin with `scope`.
  void scope(std::string scope) { scope_ = std::move(scope); }
  /// An activation of `width` float32 columns a row; the same name gives the same one again.
  Value activation(const std::string& name, uint64_t width, RowDomain domain = RowDomain::kRows);

  void embed(WeightName weight, Value y);
  void rms_norm(Value x, VectorName weight, float epsilon, Value y);
  void linear(Value x, std::vector<WeightName> weights, Value y);
  void linear_add(Value x, WeightName weight, Value y);
  void add_bias(VectorName bias, Value y);
  void rope(RopeOp rope);
  void attention(AttentionOp attention);
  void silu_mul(Value x, Value y);
  void select_logit_rows(Value x, Value y);
  /// Ends the step: samples, scores and commits from `logits`.
  void sample(Value logits);

  StepProgram take() && { return std::move(program_); }

 private:
  void append(const char* name, Operation operation);
  std::string scope_;
  StepProgram program_;
};

}  // namespace atlas::plan
