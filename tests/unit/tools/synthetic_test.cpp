// Synthetic models: their shapes are planned as the released model's, and what is drawn for their
// weights can be packed.
#include "tools/atlas-bench/synthetic.h"

#include <doctest/doctest.h>

#include "daemon/device/abi_call.h"
#include "tests/unit/tools/tools_fixture.h"

using namespace atlas;
using namespace atlas::testing;

TEST_SUITE_BEGIN("tools bench");

namespace {

app::Assembly assemble_synthetic(const std::string& quant, const TempDir& folder) {
  const std::string path = folder.file("");
  const Status written = bench::write_synthetic_checkpoint("qwen3.8-flash-next", quant, path);
  REQUIRE_MESSAGE(written.ok(), written.message());
  tools::ModelOptions options;
  options.model = path;
  const auto settings = tools::tool_settings(options, {.sequences = 1, .sequence_tokens = 262144});
  REQUIRE_MESSAGE(settings, settings.error().message());
  app::Plugins plugins;
  const Status loaded = app::load_plugins(*settings, plugins);
  REQUIRE_MESSAGE(loaded.ok(), loaded.message());
  auto assembly = app::assemble(*settings, plugins);
  REQUIRE_MESSAGE(assembly, assembly.error().message());
  return std::move(*assembly);
}

/// Packs all of a part with drawn contents.
void check_packs(const app::Assembly& assembly, const plan::Weight& weight) {
  const plan::WeightPart& part = weight.parts.front();
  CAPTURE(part.module);
  const auto source = bench::synthetic_weights(assembly.model->weights);
  std::vector<AtlasTensor> tensors = source->module_tensors(part.module);
  std::vector<std::vector<std::byte>> bytes(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    bytes[i].resize(tensors[i].bytes);
    REQUIRE(source->read(tensors[i], 0, bytes[i]).ok());
    tensors[i].data = bytes[i].data();
  }
  AtlasWeightQuery query{};
  query.struct_size = sizeof(query);
  query.tensor_count = static_cast<uint32_t>(tensors.size());
  query.platform = "cpu";
  query.module = part.module.c_str();
  query.n = part.claim.n;
  query.k = part.claim.k;
  query.tensors = tensors.data();
  for (const plan::QuantBackend& backend : assembly.model->quant) {
    if (backend.name != weight.plugin) continue;
    std::vector<std::byte> packed(part.bytes);
    const uint64_t groups = (part.bytes - part.claim.head_bytes) / part.claim.group_bytes;
    const Status status = abi::call("pack", backend.api->pack, &query, &part.claim, uint64_t{0},
                                    groups, static_cast<void*>(packed.data()));
    CHECK_MESSAGE(status.ok(), status.message());
  }
}

}  // namespace

TEST_CASE("synthetic: every format of Qwen3.8-Flash-Next is planned, and what is drawn packs") {
  struct Format {
    const char* quant;
    double least_gib, most_gib;  // of resident weights
  };
  // Published sizes without n-grams and vision: 68.2 GB (exl3 4.05), 73.3 GiB and the draft head's
  // fp8 experts (nvfp4), 240 GB (bf16).
  for (const Format& format : {Format{"exl3:4.05", 60, 68}, Format{"nvfp4", 72, 80},
                               Format{"fp8", 118, 130}, Format{"bf16", 230, 245}}) {
    CAPTURE(format.quant);
    const TempDir folder;
    const app::Assembly assembly = assemble_synthetic(format.quant, folder);
    CHECK(assembly.audit.ok());
    const plan::Plan& plan = assembly.model->plan;
    const auto weights = static_cast<double>(plan.ledger.bytes.at(plan::LedgerLine::kWeights));
    CHECK(weights > format.least_gib * 1073741824.0);
    CHECK(weights < format.most_gib * 1073741824.0);
    std::string formats;  // one weight of each
    for (const plan::Weight& weight : plan.weights) {
      if (weight.parts.front().bytes > 64u << 20 ||
          formats.find("|" + weight.format) != std::string::npos) {
        continue;
      }
      formats += "|" + weight.format;
      check_packs(assembly, weight);
    }
  }
}

TEST_CASE("synthetic: models and formats that are not known are refused with those that are") {
  const TempDir folder;
  const auto refused = [&](const char* model, const char* quant) {
    const Status status = bench::write_synthetic_checkpoint(model, quant, folder.file(""));
    CHECK(!status.ok());
    return status.message();
  };
  CHECK(refused("gpt-2", "bf16").find("qwen3.8-flash-next") != std::string::npos);
  for (const char* quant :
       {"q4_1", "exl3", "exl3:", "exl3:1.9", "exl3:6", "exl3:x", "exl3:4.05x"}) {
    CHECK(refused("qwen3.8-flash-next", quant).find("exl3:B with B from 2 to less than 6") !=
          std::string::npos);
  }
}

TEST_SUITE_END();
