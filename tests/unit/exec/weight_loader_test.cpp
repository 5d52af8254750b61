// Loading weights from files that are not what they were when they were opened.
#include "daemon/exec/weight_loader.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/engine_fixture.h"
#include "tests/support/tiny_llama.h"

using namespace atlas;
using namespace atlas::testing;

TEST_SUITE_BEGIN("exec");

namespace {

/// Opens and plans the model at `path`, leaves its file `file` with `bytes` bytes, then loads.
Status load_after_cut(const std::string& path, const std::string& file, uint64_t bytes) {
  const settings::Settings settings = small_settings(path, test_platforms().front().settings);
  app::Plugins plugins;
  ATLAS_RETURN_IF_ERROR(app::load_plugins(settings, plugins));
  ATLAS_ASSIGN_OR_RETURN(const auto device, app::open_device(settings, plugins));
  ATLAS_ASSIGN_OR_RETURN(const auto modules, app::load_modules(device, plugins.packs));
  ATLAS_ASSIGN_OR_RETURN(const app::Assembly assembly, app::assemble(settings, plugins));
  std::filesystem::resize_file(file, bytes);
  return engine::Generation::build(
             assembly.model, device, modules, nullptr, [](const std::string&, double) {},
             [] { return false; })
      .error();
}

void check_names(const Status& status, const std::string& file, uint64_t before, uint64_t now) {
  CHECK(status.code() == Code::kDataLoss);
  for (const std::string& part :
       {file, fmt::format("had {}", before), fmt::format("has {}", now), std::string("tensor '")}) {
    CHECK_MESSAGE(status.message().find(part) != std::string::npos, status.message());
  }
}

}  // namespace

TEST_CASE("weights: a GGUF file that is cut between opening and loading is an error, no signal") {
  TinyLlama model;
  model.dtype = ATLAS_Q4_1;
  model.embedding_dtype = ATLAS_Q8_0;
  for (const double share : {0.0, 0.5, 0.95}) {
    CAPTURE(share);
    const TempDir folder;
    const std::string file = folder.file("tiny.gguf");
    write_tiny_llama_gguf(model, file);
    const uint64_t whole = std::filesystem::file_size(file);
    REQUIRE(load_after_cut(file, file, whole).ok());
    const auto rest = static_cast<uint64_t>(static_cast<double>(whole) * share);
    check_names(load_after_cut(file, file, rest), file, whole, rest);
  }
}

TEST_CASE("weights: a shard that is cut between opening and loading is named") {
  TinyLlama model;
  model.shards = 2;
  const TempDir folder;
  write_tiny_llama_folder(model, folder.path());
  const std::string file = folder.file("model-00002-of-00002.safetensors");
  const uint64_t whole = std::filesystem::file_size(file);
  check_names(load_after_cut(folder.path(), file, whole / 2), file, whole, whole / 2);
}

TEST_SUITE_END();
