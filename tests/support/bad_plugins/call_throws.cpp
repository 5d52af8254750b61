// Exceptions leave its functions and its shutdown: one of the standard library's, one of its own.
#include <stdexcept>

#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("call_throws"), stub::kCpu, stub::kNoKernels));
ATLAS_STUB_ENTRY {
  static AtlasQuantApi quant = stub::quant_table;
  quant.claim = [](const AtlasWeightQuery*, AtlasWeightClaim*, AtlasError*) -> AtlasCode {
    throw std::out_of_range("thrown in claim");
  };
  quant.linear_needs = [](const AtlasLinearProblem*, AtlasLinearNeeds*, AtlasError*) -> AtlasCode {
    struct OfItsOwn {};
    throw OfItsOwn();
  };
  quant.plan_linear = [](const AtlasLinearProblem*, const AtlasRecordSink*, AtlasError* out) {
    std::memset(out->message, 'x', sizeof(out->message));  // no NUL
    return AtlasCode{ATLAS_INVALID_ARGUMENT};
  };
  quant.plan_encode = [](const AtlasEncodeProblem*, const AtlasRecordSink*, AtlasError*) {
    return AtlasCode{99};
  };
  static AtlasPlugin plugin = stub::plugin_table;
  plugin.quant = &quant;
  plugin.shutdown = [] { throw std::runtime_error("thrown in shutdown"); };
  return &plugin;
}
