// The registry: states, reasons, and which failures stop a generation.
#include "daemon/plugin_host/registry.h"

#include <doctest/doctest.h>

#include "daemon/plugin_host/json.h"
#include "daemon/plugin_host/packs.h"
#include "tests/unit/plugin_host/support.h"

using namespace atlas;
using namespace atlas::plugin_host;
using namespace atlas::plugin_host::testing;

TEST_SUITE_BEGIN("plugin_host");

namespace {

// A plugin folder with copies of test plugins: {file name without .so, which plugin}.
struct PluginDir : TempDir {
  PluginDir(std::initializer_list<std::pair<std::string, std::string>> files) {
    for (const auto& [name, plugin] : files) {
      fs::copy_file(test_plugin(plugin), *this / (name + ".so"));
    }
  }
};

const PluginReport& report_on(const PluginRegistry& registry, const std::string& file) {
  for (const PluginReport& report : registry.reports()) {
    if (report.file.ends_with("/" + file)) return report;
  }
  FAIL("no report on " << file);
  return registry.reports().front();
}

}  // namespace

TEST_CASE(
    "registry: a folder without names gives loaded, skipped and failed, each with its reason") {
  const PluginDir dir{{"a", "good"}, {"b", "platform_not_listed"}, {"c", "entry_silent"}};
  write_file(dir / "d.so", "not a plugin");
  write_file(dir / "notes.txt", "not looked at");
  const auto registry = PluginRegistry::load_all({"cpu", {}, dir.path(), ""});
  CHECK(registry.status().ok());  // nothing was asked for by name
  REQUIRE(registry.reports().size() == 4);
  CHECK(report_on(registry, "a.so").state == PluginState::kLoaded);
  CHECK(report_on(registry, "a.so").version == "1.0");
  CHECK(report_on(registry, "b.so").state == PluginState::kSkipped);
  CHECK(report_on(registry, "b.so").reason ==
        "it does not list platform 'cpu' (it lists: gb10, h200)");
  CHECK(report_on(registry, "c.so").state == PluginState::kFailed);
  CHECK(report_on(registry, "d.so").state == PluginState::kFailed);
  CHECK(registry.plugins().size() == 1);
  CHECK(registry.find("good") != nullptr);
  CHECK(registry.find("bad") == nullptr);
  CHECK(registry.descriptors().at(0).name == "good");
}

TEST_CASE("registry: only named plugins load, and one that fails fails the whole") {
  const PluginDir dir{{"good", "good"}, {"optional_absent", "optional_absent"}};
  const std::string elsewhere = test_plugin("entry_throws");
  auto registry = PluginRegistry::load_all({"cpu", {{"good", ""}}, dir.path(), ""});
  CHECK(registry.status().ok());
  CHECK(registry.plugins().size() == 1);
  CHECK(report_on(registry, "optional_absent.so").reason == "the settings do not name it");

  registry = PluginRegistry::load_all({"cpu",
                                       {{"good", "good.so"},
                                        {"entry_throws", elsewhere},
                                        {"platform_not_listed", test_plugin("platform_not_listed")},
                                        {"absent", ""}},
                                       dir.path(),
                                       ""});
  CHECK(registry.status().code() == Code::kFailedPrecondition);
  CHECK(missing_part(registry.status(), {"thrown in the entry", "does not list platform 'cpu'",
                                         dir / "absent.so"}) == "");
  CHECK(registry.reports().size() == 5);
  CHECK(registry.reports()[0].state == PluginState::kLoaded);
}

TEST_CASE("registry: a file that is not the plugin that the settings say is a failure") {
  const auto registry = PluginRegistry::load_all({"cpu", {{"gguf", test_plugin("good")}}, "", ""});
  CHECK(missing_part(registry.status(), {"'gguf'", "says 'good'", test_plugin("good")}) == "");
  CHECK(registry.plugins().empty());
}

TEST_CASE("registry: the same name twice fails both and names both files") {
  const PluginDir dir{{"one", "good"}, {"two", "good_2"}};
  const auto scanned = PluginRegistry::load_all({"cpu", {}, dir.path(), ""});
  CHECK(missing_part(scanned.status(), {"'good'", dir / "one.so", dir / "two.so"}) == "");
  CHECK(scanned.plugins().empty());
  const auto named =
      PluginRegistry::load_all({"cpu", {{"good", "one.so"}, {"good", "two.so"}}, dir.path(), ""});
  CHECK(missing_part(named.status(), {"'good'", dir / "one.so", dir / "two.so"}) == "");
  // Naming one of them settles it.
  const auto chosen = PluginRegistry::load_all({"cpu", {{"good", "two.so"}}, dir.path(), ""});
  CHECK(chosen.status().ok());
  CHECK(report_on(chosen, "one.so").state == PluginState::kSkipped);
}

TEST_CASE("registry: a file is looked at once, under however many paths") {
  const PluginDir dir{{"good", "good"}};
  fs::create_symlink("good.so", dir / "alias.so");
  const auto registry =
      PluginRegistry::load_all({"cpu", {{"good", dir.path() + "/./good.so"}}, dir.path(), ""});
  CHECK_MESSAGE(registry.status().ok(), registry.status().message());
  CHECK(registry.reports().size() == 1);
}

TEST_CASE("registry: a folder that is not there is an error") {
  const auto registry = PluginRegistry::load_all({"cpu", {}, "/nowhere/at/all", ""});
  CHECK(missing_part(registry.status(), {"'/nowhere/at/all'", "cannot be listed"}) == "");
}

TEST_CASE("registry: the packs of loaded plugins join the platform's") {
  const auto registry = PluginRegistry::load_all({"cpu", {{"packed", ""}}, kTestPlugins, ""});
  REQUIRE(registry.status().ok());
  auto packs = PackIndex::read("cpu", kTestKernels + "/cpu");
  REQUIRE(packs);
  CHECK(registry.add_packs(*packs).ok());
  CHECK(packs->find("packed_scale") != nullptr);
}

TEST_CASE("registry: the JSON form lists every plugin with state and reason") {
  const PluginDir dir{{"a", "good"}, {"b", "platform_not_listed"}};
  const auto registry = PluginRegistry::load_all({"cpu", {}, dir.path(), ""});
  const std::string json = to_json(registry.reports());
  CHECK(json.find(R"("state":"skipped","reason":"it does not list platform 'cpu')") !=
        std::string::npos);
  CHECK(
      json.find(R"("name":"good","version":"1.0","licence":"Apache-2.0","kind":"quantization")") !=
      std::string::npos);
}

TEST_SUITE_END();
