#include "tools/common/local_model.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/tools/tools_fixture.h"
#include "tools/atlas-eval/generate.h"

using namespace atlas;
using namespace atlas::testing;

TEST_SUITE_BEGIN("tools local model");

TEST_CASE("settings: the command's needs go over the file, and --set over both") {
  const TempDir folder;
  tools::ModelOptions options;
  options.model = "new.gguf";
  options.threads = 3;
  options.config = write_file(folder, "atlasd.yaml",
                              "model: {path: old.gguf, name: old}\n"
                              "engine: {max_sequences: 5, prefill_rows: 96, graphs: false}\n"
                              "platform: {options: {threads: 1, pin: true}}\n");
  options.set = {"engine.context_tokens=77"};
  const auto settings = tools::tool_settings(options, {2, 100, 200});
  REQUIRE_MESSAGE(settings, settings.error().message());
  CHECK(settings->model.path == "new.gguf");
  CHECK(settings->model.name.empty());
  CHECK(settings->engine.max_sequences == 2);
  CHECK(settings->engine.context_tokens == 77);
  CHECK(settings->engine.cache_tokens >= 200);
  const auto endless = tools::tool_settings(options, {1, 2'000'000'000});
  REQUIRE(endless);
  CHECK(endless->engine.cache_tokens == 0);
  CHECK(settings->engine.prefill_rows == 200);
  CHECK_FALSE(settings->engine.graphs);
  const settings::PlatformSettings& platform = settings->platform;
  CHECK(std::count(platform.options.begin(), platform.options.end(),
                   std::pair<std::string, std::string>("threads", "3")) == 1);
  CHECK(platform.options.size() == 2);
}

TEST_CASE("settings: a --set without a value or of an unknown key is refused") {
  tools::ModelOptions options;
  options.model = "a.gguf";
  options.set = {"engine.graphs"};
  CHECK(tools::tool_settings(options, {}).error().message().find("KEY=VALUE") != std::string::npos);
  options.set = {"engine.graph=false"};
  CHECK(tools::tool_settings(options, {}).error().message().find("engine.graphs") !=
        std::string::npos);
}

TEST_CASE("a model that is not there, or threads that cannot be, are errors and no crash") {
  const auto absent = tools::tool_settings(tiny_options("/absent.gguf"), {});
  REQUIRE(absent);
  CHECK_FALSE(tools::LocalModel::open(*absent));
  tools::ModelOptions options = tiny_options();
  options.platform = "no-such-platform";
  const auto other = tools::tool_settings(options, {});
  REQUIRE(other);
  CHECK_FALSE(tools::LocalModel::open(*other));
}

TEST_CASE("a context shorter than a page of the cache loads, passes its self-test and runs") {
  const auto model = open_model(tiny_options(), {.sequences = 1, .sequence_tokens = 10});
  CHECK(model->info().context_tokens == 10);
  const auto generated = eval::generate(*model, some_ids(6), 100, true);
  REQUIRE_MESSAGE(generated, generated.error().message());
  CHECK(generated->ids.size() == 4);  // up to the end of the context
}

TEST_SUITE_END();
