// What the test plugins share: a quantization table that works and claims nothing but modules named
// "stub", and the pieces of a descriptor. Each plugin's own file says what is wrong with it.
#pragma once

#include <cstring>
#include <string_view>

#include "kernels/common/params.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"
#include "tests/support/bad_plugins/test_kernels.h"

namespace atlas::stub {

#ifndef STUB_GENERATION
#define STUB_GENERATION 1
#endif

/// Statics of one mapping, so that tests see how often what ran in it.
inline int entries = 0;
inline int shutdowns = 0;

inline AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* claim, AtlasError*) {
  claim->claimed = query->module != nullptr && std::strcmp(query->module, "stub") == 0;
  sdk::copy_text(claim->format, "stub");
  claim->n = STUB_GENERATION;
  claim->k = static_cast<uint64_t>(entries);
  claim->row_group = static_cast<uint32_t>(shutdowns);
  return ATLAS_OK;
}
inline AtlasCode not_implemented(AtlasError* error) {
  return sdk::fail(error, ATLAS_UNIMPLEMENTED, "a stub does not compute");
}
inline AtlasCode pack(const AtlasWeightQuery*, const AtlasWeightClaim*, uint64_t, uint64_t, void*,
                      AtlasError* error) {
  return not_implemented(error);
}
inline AtlasCode linear_needs(const AtlasLinearProblem*, AtlasLinearNeeds*, AtlasError* error) {
  return not_implemented(error);
}
inline AtlasCode plan_linear(const AtlasLinearProblem*, const AtlasRecordSink*, AtlasError* error) {
  return not_implemented(error);
}
inline AtlasCode plan_encode(const AtlasEncodeProblem*, const AtlasRecordSink*, AtlasError* error) {
  return not_implemented(error);
}
inline AtlasCode plan_gather(const AtlasGatherProblem*, const AtlasRecordSink*, AtlasError* error) {
  return not_implemented(error);
}
inline AtlasCode plan_grouped(const AtlasGroupedProblem*, const AtlasRecordSink*,
                              AtlasError* error) {
  return not_implemented(error);
}

inline AtlasCode grouped_needs(const AtlasGroupedProblem*, AtlasLinearNeeds*, AtlasError* error) {
  return not_implemented(error);
}

inline AtlasQuantApi quant_table = {
    sizeof(AtlasQuantApi), 0,           claim,       pack,         linear_needs,
    plan_linear,           plan_encode, plan_gather, plan_grouped, grouped_needs};

inline void shutdown() { ++shutdowns; }

inline AtlasPlugin plugin_table = {
    sizeof(AtlasPlugin), ATLAS_ABI_MAJOR, ATLAS_ABI_MINOR, ATLAS_KIND_QUANT,
    &quant_table,        nullptr,         nullptr,         shutdown};

consteval sdk::Identity identity(std::string_view name) {
  return {ATLAS_KIND_QUANT, name, "1.0", "Apache-2.0"};
}

inline constexpr std::array<std::string_view, 1> kCpu = {"cpu"};
inline constexpr std::array<AtlasDescriptorKernel, 0> kNoKernels = {};

}  // namespace atlas::stub

/// The entry symbol; the body that follows sees `error`.
#define ATLAS_STUB_ENTRY                                                                   \
  extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry( \
      [[maybe_unused]] const AtlasHost* host, [[maybe_unused]] AtlasError* error)

/// An entry with nothing wrong.
#define ATLAS_STUB_GOOD_ENTRY          \
  ATLAS_STUB_ENTRY {                   \
    ++atlas::stub::entries;            \
    return &atlas::stub::plugin_table; \
  }
