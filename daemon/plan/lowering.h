// Lowering: the room's own header. Turns the operations of one bucket into records.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "daemon/plan/planner.h"

namespace atlas::plan {

/// Where a linear operation's weights ended up: one resident weight and its columns of y.
struct PlacedWeight {
  uint32_t weight = 0;  // of Plan::weights
  uint64_t y_first = 0;
};

/// Where a layer's state lies inside a page, a slot and an anchor; bytes.
struct LayerState {
  uint64_t page = 0, slot = 0, anchor = 0;
};

/// The plan while it grows: buffers by name, weights by module, vectors by tensor, states by layer.
class PlanBuilder {
 public:
  explicit PlanBuilder(const PlanInput& input)
      : input_(input), declarations_(input.declared), followed_(input.declared.size()) {}

  /// The buffer of that name, made at the first call, at least `bytes` large.
  BufferId buffer(const std::string& name, LedgerLine line, uint64_t bytes,
                  AtlasMemoryKind memory = ATLAS_MEMORY_DEVICE);
  /// Finds who packs the modules, and packs together those that can be.
  Result<std::vector<PlacedWeight>> place(const std::vector<WeightName>& weights);
  /// The same for modules "<module>.<expert>.<name of projection>": every expert's weights lie like
  /// those of expert 0. Errors: kUnimplemented if the checkpoint has them in different formats.
  Result<std::vector<PlacedWeight>> place_experts(const std::string& module, uint32_t experts,
                                                  const std::vector<WeightName>& projections);
  Result<BufferId> vector(const VectorName& vector);
  /// Whole numbers that a kernel reads, as bytes.
  BufferId constant(const std::string& name, std::span<const uint64_t> values);
  const QuantBackend& quant(const std::string& name) const;
  Result<const AttentionBackend*> attention(const std::string& name) const;

  /// Whether the declarations fit all weights that were placed.
  Status check_declared() const;

  const PlanInput& input() const { return input_; }
  Plan plan;
  std::map<std::string, LayerState> states;  // by state_name()

 private:
  struct Claimed {
    WeightName name;
    std::string plugin;
    AtlasWeightClaim claim{};
  };
  Result<Claimed> claim(const WeightName& weight);
  void count_declared(const std::optional<DeclaredFormat>& declared, const Claimed& claimed);
  void append_part(Weight& weight, const Claimed& claimed);
  bool joins(const Weight& weight, const Claimed& claimed) const;

  const PlanInput& input_;
  std::map<std::string, BufferId> buffers_by_name_;
  std::map<std::string, std::vector<PlacedWeight>> placed_by_modules_;
  std::map<std::string, BufferId> vectors_by_name_;
  /// Of each declaration: how many weights it decided, its entries among them, and how many weights
  /// are in the format that it has for all.
  struct Followed {
    uint64_t weights = 0, in_format = 0;
    std::set<size_t> entries;
  };
  uint64_t claims_ = 0;
  const DeclarationIndex declarations_;
  std::vector<Followed> followed_;
};

/// The name of a layer's state.
std::string state_name(const std::string& backend, uint32_t layer);

/// An attention layer as its plugin is asked about it; the problem points into the other two.
struct AttentionRequest {
  std::string backend;
  AtlasAttentionProblem problem{};
  AtlasIndexer indexer{};
  AtlasDelta delta{};
};
/// The shapes of a layer; buffers are absent.
std::unique_ptr<AttentionRequest> attention_request(const AttentionOp& op, const Plan& plan,
                                                    uint32_t max_rows);
std::unique_ptr<AttentionRequest> attention_request(const DeltaOp& op, const Plan& plan,
                                                    uint32_t max_rows);

/// Appends the step of one bucket to the plan.
Status lower_step(PlanBuilder& builder, const Bucket& bucket);

}  // namespace atlas::plan
