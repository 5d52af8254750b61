// The planner: operations to records, weights to layouts, everything to bytes of the ledger.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/plan/declared_formats.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/step_builder.h"

namespace atlas::plan {

/// The tensors of a checkpoint as a plan sees them.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Tensors whose names begin with `module` and a dot, without their data.
  virtual std::vector<AtlasTensor> module_tensors(const std::string& module) const = 0;
  /// One tensor by its full name; kNotFound names it.
  virtual Result<AtlasTensor> tensor(const std::string& name) const = 0;
  /// Copies `out.size()` bytes of a tensor that this source gave, from byte `offset` of it on.
  /// Errors: kDataLoss if its file was cut short or cannot be read.
  virtual Status read(const AtlasTensor& tensor, uint64_t offset,
                      std::span<std::byte> out) const = 0;
  /// Names the files and their contents: two sources with equal texts hold the same weights.
  virtual std::string identity() const = 0;
  /// The tensor's bytes in the file are not needed again.
  virtual void drop_cache(const AtlasTensor& tensor) const = 0;
};

struct QuantBackend {
  std::string name;
  const AtlasQuantApi* api = nullptr;
};
struct AttentionBackend {
  std::string name;
  const AtlasAttentionApi* api = nullptr;
};

struct PlanInput {
  std::string platform;
  const WeightSource* weights = nullptr;
  std::span<const QuantBackend> quant;  // asked in this order which of them a weight belongs to
  std::span<const AttentionBackend> attention;
  /// What must agree with the tensors; the first that says something about a module decides.
  std::span<const DeclaredFormats> declared;
  const StepProgram* program = nullptr;
  Shape shape;
};

/// Errors name the operation, the module, the plugin and what to change. Reads no weight.
Result<Plan> make_plan(const PlanInput& input);

}  // namespace atlas::plan
