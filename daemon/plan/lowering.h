// Lowering: the room's own header. Turns the operations of one bucket into records.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/plan/planner.h"

namespace atlas::plan {

/// Where a linear operation's weights ended up: one resident weight and its columns of y.
struct PlacedWeight {
  uint32_t weight = 0;  // of Plan::weights
  uint64_t y_first = 0;
};

/// The plan while it grows: buffers by name, weights by module, vectors by tensor.
class PlanBuilder {
 public:
  explicit PlanBuilder(const PlanInput& input) : input_(input) {}

  /// The buffer of that name, made at the first call, at least `bytes` large.
  BufferId buffer(const std::string& name, LedgerLine line, uint64_t bytes,
                  AtlasMemoryKind memory = ATLAS_MEMORY_DEVICE);
  /// Finds who packs the modules, and packs together those that can be.
  Result<std::vector<PlacedWeight>> place(const std::vector<WeightName>& weights);
  Result<BufferId> vector(const VectorName& vector);
  const QuantBackend& quant(const std::string& name) const;
  Result<const AttentionBackend*> attention(const std::string& name) const;

  const PlanInput& input() const { return input_; }
  Plan plan;

 private:
  struct Claimed {
    WeightName name;
    std::string plugin;
    AtlasWeightClaim claim{};
  };
  Result<Claimed> claim(const WeightName& weight) const;
  void append_part(Weight& weight, const Claimed& claimed);

  const PlanInput& input_;
  std::map<std::string, BufferId> buffers_by_name_;
  std::map<std::string, std::vector<PlacedWeight>> placed_by_modules_;
  std::map<std::string, BufferId> vectors_by_name_;
};

/// Appends the step of one bucket to the plan.
Status lower_step(PlanBuilder& builder, const Bucket& bucket);

}  // namespace atlas::plan
