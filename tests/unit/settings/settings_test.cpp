#include "daemon/settings/settings.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

using namespace atlas;

TEST_SUITE_BEGIN("settings");

namespace {
const std::string kMinimal = "model: {path: /m.gguf}\n";

std::string error_of(const std::string& yaml) {
  const auto parsed = settings::parse(yaml, "a.yaml");
  REQUIRE_FALSE(parsed);
  return parsed.error().message();
}
}  // namespace

TEST_CASE("settings: a minimal file gets every default") {
  const auto parsed = settings::parse(kMinimal, "a.yaml");
  REQUIRE(parsed);
  CHECK(parsed->model.path == "/m.gguf");
  CHECK(parsed->engine.max_sequences == 16);
  CHECK(parsed->server.socket.mode == 0660);
  CHECK(parsed->plugins.quant ==
        std::vector<settings::PluginEntry>{
            {"gguf", ""}, {"nvfp4", ""}, {"fp8", ""}, {"exl3", ""}, {"bf16", ""}});
}

TEST_CASE("settings: values of every kind are read") {
  const auto parsed = settings::parse(R"(
model: {path: /m, name: small}
platform: {name: cpu, options: {threads: 2}}
plugins:
  quant: [bf16, {name: gguf, path: /tmp/other.so}]
engine: {graphs: off, reserve_bytes: 2 GiB, max_sequences: 3}
server:
  socket: {path: /tmp/s.sock, mode: "0600"}
  limits: {body_bytes: 64KiB}
log: {level: debug}
)",
                                      "a.yaml");
  REQUIRE_MESSAGE(parsed, parsed.error().message());
  CHECK(parsed->platform.options.front() == std::pair<std::string, std::string>("threads", "2"));
  CHECK(parsed->plugins.quant[1].path == "/tmp/other.so");
  CHECK_FALSE(parsed->engine.graphs);
  CHECK(parsed->engine.reserve_bytes == 2ull << 30);
  CHECK(parsed->server.socket.mode == 0600);
  CHECK(parsed->server.limits.body_bytes == 65536);
  CHECK(parsed->log_level == LogLevel::kDebug);
}

TEST_CASE("settings: errors give file, line, column and what was found") {
  CHECK(
      error_of("model:\n  path: /m\nengine:\n  max_sequenzes: 3\n") ==
      "a.yaml:4:3: there is no key 'engine.max_sequenzes'; the nearest is 'engine.max_sequences'");
  CHECK(error_of("model: {path: /m}\nengine: {max_sequences: many}\n") ==
        "a.yaml:2:25: expected a whole number from 0 to 4294967295, found 'many' (key "
        "'engine.max_sequences')");
  CHECK(error_of("model: {path: /m}\nengine: {max_sequences: -1}\n").find("found '-1'") !=
        std::string::npos);
  CHECK(error_of("model: {path: /m}\nengine: 3\n").find("expected a map under 'engine'") !=
        std::string::npos);
  CHECK(error_of("model: {path: /m}\nmodel: {path: /n}\n").find("stands twice") !=
        std::string::npos);
  CHECK(error_of("model: {path: /m}\nplatform:\n  options:\n    threads: 1\n    threads: 2\n") ==
        "a.yaml:5:5: option 'threads' stands twice (key 'platform.options')");
  CHECK(error_of("model: {path: /m}\nplugins: {quant: [{name: a, name: b}]}\n") ==
        "a.yaml:2:29: a plugin's 'name' stands twice (key 'plugins.quant')");
  CHECK(error_of("model: [\n").starts_with("a.yaml:"));
  CHECK(error_of("").find("must be a map") != std::string::npos);
  CHECK(error_of("engine: {}\n").find("model.path is missing") != std::string::npos);
}

TEST_CASE("settings: formats are one for all weights, or a map of patterns in its order") {
  const auto formats = [](const std::string& value) {
    return settings::with(*settings::parse(kMinimal, "a.yaml"), "model.formats", value);
  };
  CHECK(formats("exl3_k4")->model.formats.all == "exl3_k4");
  CHECK(formats("")->model.formats == settings::FormatSettings());
  const auto map = formats("{'model.layers.*.mlp': nvfp4, '*': bf16}");
  REQUIRE(map);
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  CHECK(map->model.formats.modules == Pairs{{"model.layers.*.mlp", "nvfp4"}, {"*", "bf16"}});
  CHECK(settings::difference(*formats(""), *map).swappable ==
        std::vector<std::string>{"model.formats"});
  for (const char* wrong : {"[exl3]", "{'a': [b]}", "{'a': ''}", "{'': exl3}", "{a: b, a: c}"}) {
    CHECK_FALSE_MESSAGE(formats(wrong), wrong);
  }
}

TEST_CASE("settings: a number that overflows with its unit is refused") {
  CHECK(error_of("model: {path: /m}\nengine: {reserve_bytes: 99999999999GiB}\n")
            .find("expected a whole number") != std::string::npos);
}

TEST_CASE("settings: TCP beyond this machine needs a key") {
  CHECK(error_of(kMinimal + "server: {tcp: {host: 0.0.0.0, port: 8080}}\n")
            .find("server.tcp.api_key_file") != std::string::npos);
  CHECK(settings::parse(kMinimal + "server: {tcp: {port: 8080}}\n", "a.yaml"));
}

TEST_CASE("settings: one key is changed by --set, and checked") {
  const auto base = *settings::parse(kMinimal, "a.yaml");
  const auto changed = settings::with(base, "engine.prefill_rows", "128");
  REQUIRE(changed);
  CHECK(changed->engine.prefill_rows == 128);
  CHECK(settings::difference(base, *changed).swappable ==
        std::vector<std::string>{"engine.prefill_rows"});
  CHECK_FALSE(settings::with(base, "engine.prefill_rows", "1"));
  CHECK_FALSE(settings::with(base, "engine.rows", "64"));
  CHECK(settings::with(base, "model", "/m.gguf").error().message() ==
        "--set model: this is a section; set one of model.path, model.name, "
        "model.formats");
  CHECK_FALSE(settings::with(base, "plugins.quant", "[gguf, gguf]"));
}

TEST_CASE("settings: relative paths of --set begin in the directory given, others stay") {
  const auto base = *settings::parse(kMinimal, "a.yaml");
  const auto quant = [&](const std::string& value, const std::string& directory) {
    return settings::with(base, "plugins.quant", value, directory)->plugins.quant;
  };
  using Entries = std::vector<settings::PluginEntry>;
  const std::string value = "[gguf, {name: a, path: ../a.so}, {name: b, path: /x/b.so}]";
  CHECK(quant(value, "/home/me") == Entries{{"gguf", ""}, {"a", "/home/a.so"}, {"b", "/x/b.so"}});
  CHECK(quant(value, "") == Entries{{"gguf", ""}, {"a", "../a.so"}, {"b", "/x/b.so"}});
  CHECK(settings::with(base, "model.path", "m.gguf", "/home/me")->model.path == "/home/me/m.gguf");
  CHECK(settings::with(base, "model.name", "m", "/home/me")->model.name == "m");
}

TEST_CASE("settings: differences say what a change takes") {
  const auto a = *settings::parse(kMinimal, "a");
  const auto b = *settings::parse(
      kMinimal + "log: {level: debug}\nplatform: {options: {threads: 1}}\nengine: {graphs: off}\n",
      "b");
  const auto difference = settings::difference(a, b);
  CHECK(difference.reloadable == std::vector<std::string>{"log.level"});
  CHECK(difference.swappable == std::vector<std::string>{"engine.graphs"});
  CHECK(difference.restart == std::vector<std::string>{"platform.options"});
}

TEST_CASE("settings: the example file is good, names every key and shows its default") {
  const std::string path = std::string(ATLAS_SOURCE_DIR) + "/config/atlasd.yaml";
  const auto parsed = settings::load(path);
  REQUIRE_MESSAGE(parsed, parsed.error().message());
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  for (const settings::KeyInfo& key : settings::keys()) {
    const std::string leaf = key.key.substr(key.key.rfind('.') + 1) + ":";
    CHECK_MESSAGE(text.str().find(leaf) != std::string::npos, key.key);
  }
  settings::Settings defaults;
  defaults.model = parsed->model;
  const auto difference = settings::difference(defaults, *parsed);
  CHECK(difference.reloadable.empty());
  CHECK(difference.swappable.empty());
  CHECK(difference.restart.empty());
}

TEST_SUITE_END();
