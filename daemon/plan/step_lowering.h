// StepLowering: the room's own header. One bucket's operations, turned into records one after
// another.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "daemon/device/abi_call.h"
#include "daemon/plan/lowering.h"
#include "kernels/common/gpu_half.h"
#include "kernels/common/gpu_shapes.h"
#include "kernels/common/platforms.h"
#include "plugins/sdk/record.h"

namespace atlas::plan {

inline constexpr AtlasBufferRef kNowhere{ATLAS_NO_BUFFER, 0, 0};

/// Records run beside one another in steps of so many rows at most: those of more fill a device by
/// themselves, and branches have scratch of their own, which grows with the rows.
inline constexpr uint32_t kMostRowsBeside = 32;

inline bool same_columns(const Value& a, const Value& b) {
  return a.activation == b.activation && a.first == b.first && a.width == b.width &&
         a.stride == b.stride && a.domain == b.domain;
}

class StepLowering {
 public:
  StepLowering(PlanBuilder& builder, const Bucket& bucket)
      : builder_(builder),
        bucket_(bucket),
        gpu_(kernels::is_gpu(builder.plan.platform)),
        beside_(kernels::runs_beside(builder.plan.platform) && bucket.rows <= kMostRowsBeside),
        sink_{sizeof(AtlasRecordSink), 0, this, &emit} {
    step_.bucket = bucket;
  }
  Status run();

 private:
  /// Float32 rows on the device: where, how far apart, how many.
  struct Rows {
    AtlasBufferRef at = kNowhere;
    uint64_t width = 0, stride = 0;  // elements
    AtlasBufferRef count = kNowhere;
    uint32_t max_rows = 0;
    std::string content;  // equal texts: equal contents, for encodings that are still there
  };

  static AtlasCode emit(void* context, const AtlasRecord* record, AtlasError* error);

  // Places.
  uint32_t max_rows(RowDomain domain) const;
  AtlasBufferRef control(uint64_t offset = 0) const { return {builder_.plan.control, 0, offset}; }
  AtlasBufferRef row_set(RowDomain domain) const;
  AtlasBufferRef row_count(RowDomain domain) const;
  BufferId activation_buffer(const Value& value);
  AtlasBufferRef at(const Value& value);
  Rows rows(const Value& value);
  void written(const Value& value) { ++versions_[value.activation]; }
  AtlasBufferRef workspace(const std::string& name, uint64_t bytes);
  /// The same for what holds nothing from one record of an operation to the next operation's:
  /// branches that run beside one another have one each.
  AtlasBufferRef scratch(const std::string& name, uint64_t bytes);
  Result<AtlasBufferRef> vector(const VectorName& name);

  // Records of the core. `rows` is what the kernel's grid is counted in; a CPU runs as many tasks
  // unless told otherwise.
  template <typename Params>
  Status submit(sdk::Launch<Params>& launch, uint32_t rows) {
    return submit(launch, rows, rows);
  }
  template <typename Params>
  Status submit(sdk::Launch<Params>& launch, uint32_t rows, uint32_t tasks) {
    launch.grid(tasks);
    if (gpu_) {
      const kernels::LaunchShape shape = kernels::gpu_shape(launch.params, rows);
      launch.grid(shape.x, shape.y, shape.z);
      launch.block(shape.threads);
      launch.shared_bytes(shape.shared_bytes);
    }
    owner_ = "core";
    return abi::call(name_, &StepLowering::emit_launch<Params>, &launch, &sink_);
  }
  template <typename Params>
  static AtlasCode emit_launch(const sdk::Launch<Params>* launch, const AtlasRecordSink* sink,
                               AtlasError* error) {
    return launch->emit(sink, error);
  }
  template <typename Params>
  Status submit_rows(sdk::Launch<Params>& launch, const Rows& rows) {
    launch.point(&launch.params.row_count, rows.count);
    return submit(launch, rows.max_rows);
  }
  /// After a record that makes the rows `made`: it can leave them encoded as well, where its
  /// parameters have a pointer at offset `encoded`, in f16 at `encoded_f16`. 0: not.
  void can_encode(const Rows& made, size_t encoded, size_t encoded_f16 = 0) {
    makers_[made.content] = {step_.records.size() - 1, static_cast<uint32_t>(encoded),
                             static_cast<uint32_t>(encoded_f16)};
  }
  /// The same for columns that are `groups` of columns: only where these are side by side, and a
  /// warp has those of one group alone.
  void can_encode(const Value& made, const Groups& groups, size_t encoded, size_t encoded_f16 = 0) {
    const bool whole = groups.count == 1 ||
                       (groups.stride == groups.width && groups.width % kernels::kEncodedPad == 0);
    if (whole && uint64_t{groups.count} * groups.width == made.width) {
      can_encode(rows(made), encoded, encoded_f16);
    }
  }
  Status fetch_record();
  Status commit_record();

  // Branches: between fork() and join() the records from one branch() to the next run beside those
  // of the other branches. All of them follow what stands before the fork, and what stands behind
  // the join follows all of them. One fork is open at a time. They do nothing in a step of many
  // rows, whose records then are in the order in which they are written.
  bool can_fork() const { return beside_ && !branches_.open; }
  void fork();
  void branch();
  void join();
  void end_branch();

  // lowering_products.cpp
  Status lower(const EmbedOp& op);
  Status lower(const LinearOp& op);
  Status lower(const MoeOp& op);
  /// A weight, and the columns of a product's outputs that are its.
  struct ProductPart {
    const Weight* weight;
    Rows y;
  };
  Status product(const Rows& x, std::span<const ProductPart> parts, bool add);
  Status products(const Rows& x, const std::vector<PlacedWeight>& placed, const Rows& y, bool add);
  /// The runs of `placed` that one call of a plugin can do each.
  Result<std::vector<std::vector<ProductPart>>> product_runs(
      const Rows& x, const std::vector<PlacedWeight>& placed, const Rows& y, bool add);
  AtlasLinearProblem linear_problem(const Rows& x, const Weight& weight, const Rows& y) const;
  Status product_then_add(const AtlasLinearProblem& fused, const Rows& y, const Weight& weight);
  /// Where x lies in the input encoding that a plugin's product needs; plans it unless the step
  /// holds it.
  Result<AtlasBufferRef> encoded(const Rows& x, const AtlasLinearNeeds& needed,
                                 const std::string& plugin);
  /// Plans it ahead for products with these weights, for branches that will read it.
  Status encode(const Rows& x, const std::vector<PlacedWeight>& placed);
  /// Lets the record that made x write it to `out` encoded, if it can do so in the encoding that is
  /// needed and `out` has not been used since.
  bool encoded_where_made(const Rows& x, const AtlasLinearNeeds& needed, const AtlasBufferRef& out);
  /// Whether the record that made x reads this buffer.
  bool maker_reads(const Rows& x, const std::string& buffer) const;
  Result<AtlasLinearNeeds> needs(const Weight& weight, uint32_t max_rows);
  Result<AtlasLinearNeeds> grouped_needs(const AtlasGroupedProblem& problem,
                                         const std::string& plugin);
  /// Rows sorted by expert and where a step keeps them.
  struct ExpertRows {
    AtlasBufferRef chosen, weights, offsets, source, place;
    uint32_t max_rows = 0;
    AtlasBufferRef count;
  };
  /// `shared_gate` gets the place of the shared expert's gate; null: there is none.
  Status route(const MoeOp& op, const Rows& x, const std::vector<PlacedWeight>& router,
               const ExpertRows& experts, Rows* shared_gate);
  static std::vector<WeightName> router_weights(const MoeOp& op, uint64_t hidden);
  Status grouped(const Rows& x, const std::vector<PlacedWeight>& placed, AtlasBufferRef source,
                 const ExpertRows& experts, uint32_t count, const Rows& y);
  AtlasGroupedProblem grouped_problem(const Rows& x, const PlacedWeight& placed,
                                      AtlasBufferRef source, const ExpertRows& experts,
                                      uint32_t count, const Rows& y) const;
  Status silu_mul(const Rows& x, const Rows& y);
  Status add(const Rows& x, const Rows& y);

  // lowering_endings.cpp
  class EndedAt;
  /// A product that ends in the operation behind it, where the plugin does both; else false, and
  /// nothing is planned.
  Result<bool> linear_ending(const LinearOp& op, const NamedOperation& next);
  /// The epilogue that `next` is of a product into y, and the columns that it makes; nothing: none.
  std::optional<Value> epilogue_of(const Value& y, const Operation& next,
                                   AtlasLinearProblem& problem);

  // lowering_state.cpp
  Status lower(const AttentionOp& op);
  Status lower(const DeltaOp& op);
  Status lower(const NgramKeysOp& op);
  Status lower(const NgramRowsOp& op);
  Status lower(const NgramGateOp& op);
  Status lower(const NgramConvOp& op);
  Status attention(AttentionRequest& request, uint32_t layer, RowDomain domain);
  Result<AtlasAttentionNeeds> attention_needs(AttentionRequest& request);
  Result<std::unique_ptr<AttentionRequest>> delta_request(const DeltaOp& op);
  /// The layer with its heads' norm and gate, where the backend does these, too; else false, and
  /// nothing is planned.
  Result<bool> delta_norm_gate(const DeltaOp& op, const RmsNormOp& norm, const GateMulOp& gate);
  /// Rows of one sequence, at most, where no later one than the first begins a chunk; 0: any.
  uint32_t span_rows(RowDomain domain) const;

  // lowering.cpp
  Status lower(const RmsNormOp& op);
  Status lower(const AddBiasOp& op);
  Status lower(const RopeOp& op);
  Status lower(const SiluMulOp& op);
  Status lower(const AddOp& op);
  Status lower(const CopyGroupsOp& op);
  Status lower(const GateMulOp& op);
  Status lower(const SiluOp& op);
  Status lower(const SelectRowsOp& op);
  Status lower(const StreamMixOp& op);
  Status lower(const StreamInjectOp& op);
  template <typename Params>
  Status fill(sdk::Launch<Params>& launch, kernels::RmsNormParams& params, const RmsNormOp& op);
  template <typename Params>
  Status fill(sdk::Launch<Params>& launch, kernels::GateMulParams& params, const GateMulOp& op);
  /// On GPUs: what the first operations of `next` do in one record, where there is a kernel for
  /// them; how many these are, or 0.
  Result<uint32_t> lower_together(std::span<const NamedOperation> next);
  /// Heads that are normed, and gated where they stand.
  bool is_norm_gate(const RmsNormOp& norm, const GateMulOp& gate) const;
  Status norm_gate(const RmsNormOp& norm, const GateMulOp& gate);
  /// The norm takes the streams that were injected into.
  bool is_inject_norm(const StreamInjectOp& inject, const RmsNormOp& norm) const;
  Status inject_norm(const StreamInjectOp& inject, const RmsNormOp& norm);
  /// Whether the last record combined the experts of what is injected, for rows so few that it can
  /// be done together.
  bool follows_combine(const StreamInjectOp& inject);
  Status lower(const SampleOp& op);
  Status lower(const DraftBeginOp& op);
  Status lower(const DraftSampleOp& op);
  AtlasBufferRef sample_scratch();

  PlanBuilder& builder_;
  Bucket bucket_;
  bool gpu_;     // records have blocks and shared memory
  bool beside_;  // and may run beside one another
  AtlasRecordSink sink_;
  StepPlan step_;
  std::string name_, owner_;
  uint32_t index_ = kNoOperation;               // of the operation in the program
  std::map<uint32_t, uint64_t> versions_;       // writes of each activation so far
  std::map<std::string, std::string> encoded_;  // buffer: the content that it holds, encoded
  struct Maker {
    size_t record = 0;                      // of step_.records
    uint32_t encoded = 0, encoded_f16 = 0;  // offsets in its parameters of pointers to encoded rows
  };
  std::map<std::string, Maker> makers_;  // by content
  std::vector<uint32_t> after_;          // of the next record; empty: the one before it
  struct Branches {
    bool open = false;
    uint32_t number = 0;           // of the branch that is lowered now
    size_t first = 0;              // its first record, and ...
    size_t first_of_all = 0;       // ... that of the fork
    std::vector<uint32_t> before;  // what all branches follow
    std::vector<uint32_t> ends;    // the last records of those that have ended
  };
  Branches branches_;
};

}  // namespace atlas::plan
