// StepBuilder: how a model program says what a step computes, in the order the data flows.
// It names weights by module and activations by name; it knows no platform and no weight format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/plan/plan.h"

namespace atlas::plan {

/// Whose rows a value has, and so which count of the control block bounds them.
enum class RowDomain {
  kRows,       // of the step
  kLogitRows,  // those of them that get logits
  kDraftRows,  // of the draft head's later passes: one a sequence that drafts
};

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
  /// All rows that are multiplied with it are a norm's outputs, or gated means of these; for
  /// AtlasWeightQuery. A builder finds it out.
  bool normed_rows = false;
};

struct VectorName {
  std::string tensor;  // of the checkpoint, or a name for `values`
  uint64_t n = 0;
  std::vector<float> values;  // empty: read the tensor
  float plus = 0;             // added to every element of the tensor: gains stored around zero
};

/// A value as groups (heads, streams) of `width` columns, each `stride` columns after the one
/// before.
struct Groups {
  uint32_t count = 1, width = 0, stride = 0;
};

struct EmbedOp {
  WeightName weight;
  Value y;
  bool next = false;  // the ids after the step's rows instead of theirs
};
/// Each group by its own mean; the weight is one group's, shared, or all groups' side by side.
struct RmsNormOp {
  Value x;
  VectorName weight;
  float epsilon = 0;
  Value y;
  Groups from, to;  // counts and widths are equal
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
struct SiluMulOp {
  Value x;  // gate, then up
  Value y;
};
/// y += x.
struct AddOp {
  Value x, y;
};
struct CopyGroupsOp {
  Value x, y;
  Groups from, to;  // a stride of 0 repeats one group
};
/// y = x * act(gate), group by group.
struct GateMulOp {
  Value x, gate, y;
  Groups x_groups, gate_groups, y_groups;
  bool silu = false;  // else sigmoid
};
struct SiluOp {
  Value x, y;
  float scale = 1;
};
/// Rows of x that y's domain names: those that get logits, or those that drafts go on from.
struct SelectRowsOp {
  Value x, y;
};
/// u = mean over the streams of sigmoid(gate) * x. Where `gate` is the product before it, it may be
/// written nowhere: nothing else reads it.
struct StreamMixOp {
  Value gate, x, u;
  uint32_t streams = 0;
};
/// x[s] += 2 * sigmoid(c[s] / streams) * y.
struct StreamInjectOp {
  Value c, y, x;
  uint32_t streams = 0;
};
/// Asks the host for the step's rows of the hashed n-gram table, of `width` floats together. The
/// earlier in a step, the less is waited for them.
struct NgramKeysOp {
  uint64_t width = 0;
  uint32_t ngram = 0, heads = 0, eos_id = 0;
  std::vector<uint64_t> multipliers, head_sizes, head_offsets;
};
/// The rows that NgramKeysOp has asked for, once the host has brought them.
struct NgramRowsOp {
  Value y;
};
struct NgramGateOp {
  Value key, query, value, y;
  uint32_t streams = 0;
};
/// x += gated + silu(convolution of `in` over positions).
struct NgramConvOp {
  Value in, gated, x;
  VectorName weight;  // [channels, taps]
  uint32_t taps = 0, dilation = 0;
};
/// y = sum of the chosen experts' outputs by the router's weights, and a gated shared expert.
struct MoeOp {
  Value x, y;
  std::string module;  // "<module>.gate", "<module>.experts.<e>.gate_proj", ...
  uint32_t experts = 0, top = 0, intermediate = 0;
  uint32_t shared_intermediate = 0;  // 0: no shared expert
  bool shared_gate = false;
  bool normalize = true;
  bool normed_rows = false;  // x: as of WeightName
};
/// Selects blocks of positions for AttentionOp; see AtlasIndexer.
struct IndexerOp {
  Value q, k;  // q normed and rotated, k raw
  uint32_t heads = 0, head_dim = 0, budget = 0, ratio = 0;
  VectorName k_norm;
  float epsilon = 0;
  uint32_t rotary_dim = 0;
  float magnitude = 1.0f;
  VectorName inverse_frequencies;
};
/// Layers of one name and number share their state: the draft head's passes are one layer.
struct AttentionOp {
  std::string backend;
  uint32_t layer = 0;  // of the model
  Value q, k, v, out;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;
  std::optional<IndexerOp> indexer;  // none: dense
};
/// Gated DeltaNet from the projections' outputs to the heads' ones; see AtlasDelta.
struct DeltaOp {
  std::string backend;
  uint32_t layer = 0;
  Value qkv, b, a, out;
  uint32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv_kernel = 0;
  VectorName conv, a_log, dt_bias;
};
struct SampleOp {
  Value logits;
};
/// After the step's tokens are known: what the draft head goes on from.
struct DraftBeginOp {};
struct DraftSampleOp {
  Value logits;
  uint32_t number = 0;
};

using Operation = std::variant<EmbedOp, RmsNormOp, LinearOp, AddBiasOp, RopeOp, AttentionOp,
                               SiluMulOp, AddOp, CopyGroupsOp, GateMulOp, SiluOp, SelectRowsOp,
                               StreamMixOp, StreamInjectOp, NgramKeysOp, NgramRowsOp, NgramGateOp,
                               NgramConvOp, MoeOp, DeltaOp, SampleOp, DraftBeginOp, DraftSampleOp>;

/// The columns that an operation writes; nothing for one that writes no activation.
std::optional<Value> written_value(const Operation& operation);
/// The name of an activation's buffer in a plan.
std::string activation_buffer_name(const std::string& activation);

struct NamedOperation {
  std::string name;
  Operation operation;
};

/// A model's step as operations; the same for all buckets.
struct StepProgram {
  std::vector<Activation> activations;
  std::vector<NamedOperation> operations;
  uint32_t vocab = 0;
  uint32_t drafts = 0;  // that a step draws for each sequence
};

class StepBuilder {
 public:
  /// Names of the operations that follow begin with `scope`.
  void scope(std::string scope) { scope_ = std::move(scope); }
  /// An activation of `width` float32 columns a row; the same name gives the same one again.
  Value activation(const std::string& name, uint64_t width, RowDomain domain = RowDomain::kRows);

  /// Appends an operation. Its shapes are the planner's to check.
  void add(const char* name, Operation operation);

  void embed(WeightName weight, Value y) { add("embed", EmbedOp{std::move(weight), y}); }
  void rms_norm(Value x, VectorName weight, float epsilon, Value y);
  /// Heads of `groups.width` columns, each normed by itself with one weight for all.
  void head_norm(Value x, Groups from, VectorName weight, float epsilon, Value y);
  void linear(Value x, std::vector<WeightName> weights, Value y);
  void linear_add(Value x, WeightName weight, Value y);
  void add_bias(VectorName bias, Value y) { add("add_bias", AddBiasOp{std::move(bias), y}); }
  void silu_mul(Value x, Value y) { add("silu_mul", SiluMulOp{x, y}); }
  void select_rows(Value x, Value y) { add("select_rows", SelectRowsOp{x, y}); }
  /// Ends the trunk: samples and scores from `logits`.
  void sample(Value logits);
  void draft_sample(Value logits);

  StepProgram take() &&;

 private:
  std::string scope_;
  StepProgram program_;
};

}  // namespace atlas::plan
