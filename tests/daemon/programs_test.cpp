// atlasctl and atlas-bench as programs, against a real daemon.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/live_daemon.h"
#include "tests/support/run_program.h"

using namespace atlas;
using namespace atlas::testing;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("daemon");

namespace {

Ran atlasctl(const LiveDaemon& daemon, std::vector<std::string> arguments,
             const std::string& directory = "/") {
  arguments.insert(arguments.begin(), {"atlasctl", "--socket", daemon.socket()});
  return run_program(arguments, directory);
}

/// What stands in a table's row after its name.
std::string row(const std::string& table, const std::string& name) {
  const size_t at = table.find("\n" + name + "  ");
  if (at == std::string::npos) return "";
  const size_t begin = table.find_first_not_of(' ', at + 1 + name.size());
  return table.substr(begin, table.find('\n', begin) - begin);
}

/// The message of {"error": {...}}, the only line of standard output; standard error is empty.
std::string json_error(const Ran& ran) {
  CHECK(ran.err.empty());
  CHECK(std::count(ran.out.begin(), ran.out.end(), '\n') == 1);
  const Json json = Json::parse(ran.out, nullptr, false);
  REQUIRE_MESSAGE(json.is_object(), ran.out);
  REQUIRE(json.contains("error"));
  CHECK(json["error"]["code"].is_string());
  return json["error"]["message"];
}

}  // namespace

TEST_CASE("atlasctl: stats is a table of names, values and units; --json what the daemon says") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  REQUIRE(daemon.complete(R"("prompt":[5,6,7],"max_tokens":9,"ignore_eos":true)"));
  const Ran table = atlasctl(daemon, {"stats"});
  CHECK(table.code == 0);
  const auto squeezed = [&](const std::string& name) {
    std::string text = row(table.out, name);
    text.erase(
        std::unique(text.begin(), text.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
        text.end());
    return text;
  };
  CHECK_MESSAGE(squeezed("generated") == "9 tokens", table.out);
  CHECK(squeezed("prompt") == "3 tokens");
  CHECK(squeezed("finished") == "1 requests");
  CHECK(squeezed("decode steps").ends_with(" steps"));
  CHECK(squeezed("resident memory").ends_with(" MiB"));
  CHECK(table.out.find('{') == std::string::npos);
  const Ran raw = atlasctl(daemon, {"stats", "--json"});
  CHECK(Json::parse(raw.out)["engines"][0]["tokens"]["generated"] == 9);
}

TEST_CASE("atlasctl: with --json every error is JSON, with the exit code of the text") {
  LiveDaemon daemon;
  const std::vector<std::vector<std::string>> verbs = {
      {"status"},        {"status", "--wait", "--timeout", "0"},
      {"models"},        {"plugins"},
      {"plan"},          {"swap"},
      {"reload"},        {"drain"},
      {"stats"},         {"chat", "Hi"},
      {"complete", "Hi"}};
  for (std::vector<std::string> verb : verbs) {
    CAPTURE(verb.front());
    const Ran text = atlasctl(daemon, verb);
    CHECK(text.code == 1);
    CHECK(text.err.find("no daemon answers") != std::string::npos);
    verb.emplace_back("--json");
    const Ran json = atlasctl(daemon, verb);
    CHECK(json.code == 1);
    CHECK(json_error(json).find("no daemon answers") != std::string::npos);
  }
  daemon.start();
  daemon.wait_ready();
  const auto refused = [&](std::vector<std::string> verb, int code) {
    CHECK(atlasctl(daemon, verb).code == code);
    verb.emplace_back("--json");
    const Ran json = atlasctl(daemon, verb);
    CHECK(json.code == code);
    return json_error(json);
  };
  CHECK(refused({"swap", "--set", "engine.graph=on"}, 1).find("engine.graphs") !=
        std::string::npos);
  CHECK(refused({"plan", "/no/such.gguf"}, 1).find("/no/such.gguf") != std::string::npos);
  CHECK(refused({"plan", "--set", "x"}, 1).find("KEY=VALUE") != std::string::npos);
  CHECK(refused({"complete", "Hi", "--model", "other"}, 1).find("other") != std::string::npos);
  CHECK(refused({"complete", "Hi", "--top-p", "7"}, 1).find("top_p") != std::string::npos);
  CHECK(refused({"drain", "--timeout", "soon"}, 2).find("soon") != std::string::npos);
  CHECK(refused({"status", "--timeout", "3"}, 2) == "--timeout requires --wait");
  CHECK(refused({"statuss"}, 2) == "no command 'statuss'; is 'status' meant?");
  CHECK(refused({"nosuchverb"}, 2).find("no command 'nosuchverb': there are status, ") == 0);
}

TEST_CASE(
    "atlasctl: status --wait is for a daemon that was started just now, and reload says its end") {
  LiveDaemon daemon({.yaml = "engine: {max_sequences: 3}\n"});
  RunningProgram early({"atlasctl", "--socket", daemon.socket(), "status", "--wait"});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(early.running());
  daemon.start();
  const Ran waited = early.finish();
  CHECK_MESSAGE(waited.code == 0, waited.err);
  CHECK_MESSAGE(waited.out.find("engine    serving") != std::string::npos, waited.out);
  daemon.write_settings("engine: {max_sequences: 2}\n");
  const Ran reloaded = atlasctl(daemon, {"reload"});
  CHECK_MESSAGE(
      reloaded.out.find("\ngeneration 2 serves new sequences after ") != std::string::npos,
      reloaded.out);
}

TEST_CASE("atlasd: --check-config tells of a socket's folder that is not there") {
  LiveDaemon daemon;
  const auto check = [&](const std::string& socket) {
    const std::string path = daemon.file("checked.yaml");
    std::ofstream(path) << "model: {path: /m.gguf}\nserver: {socket: {path: " << socket << "}}\n";
    return run_program({"atlasd", "--config", path, "--check-config"});
  };
  CHECK(check(daemon.socket()).out.ends_with("checked.yaml: good\n"));
  CHECK(check("/no/such/s.sock").out.find("the folder '/no/such' of server.socket.path does not") !=
        std::string::npos);
}

TEST_CASE("atlasctl: relative paths begin where it runs") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  const std::string plugins = std::string(ATLAS_BINARY_DIR) + "/lib/atlas/plugins";
  std::filesystem::create_directory(daemon.file("mine"));
  std::filesystem::copy(plugins + "/quant_gguf.so", daemon.file("mine/copy.so"));
  const std::string set = "plugins.quant=[{name: gguf, path: mine/copy.so}]";
  const Ran elsewhere = atlasctl(daemon, {"swap", "--set", set}, "/");
  CHECK(elsewhere.code == 1);
  CHECK_MESSAGE(elsewhere.err.find("/mine/copy.so") != std::string::npos, elsewhere.err);
  const std::string here = std::filesystem::path(daemon.socket()).parent_path().string();
  const Ran good = atlasctl(daemon, {"swap", "--set", set}, here);
  CHECK_MESSAGE(good.code == 0, good.err);
  const Ran listed = atlasctl(daemon, {"plugins"});
  CHECK_MESSAGE(listed.out.find(daemon.file("mine/copy.so")) != std::string::npos, listed.out);
  const Ran plan = atlasctl(daemon, {"plan", "tiny.gguf"}, here);
  CHECK_MESSAGE(plan.code == 0, plan.err);
}

TEST_CASE("atlas-bench: socket measures a daemon, and counts every token") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  const std::vector<std::string> arguments = {
      "atlas-bench", "socket",          "--socket", daemon.socket(), "--clients", "2", "--requests",
      "6",           "--prompt-tokens", "20",       "--max-tokens",  "8"};
  const Ran text = run_program(arguments);
  CHECK_MESSAGE(text.code == 0, text.err);
  CHECK(text.out.find("first token") != std::string::npos);
  std::vector<std::string> with_json = arguments;
  with_json.emplace_back("--json");
  const Ran ran = run_program(with_json);
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const Json json = Json::parse(ran.out);
  CAPTURE(ran.out);
  CHECK(json["benchmark"] == "socket");
  CHECK(json["failed"] == 0);
  CHECK(json["tokens"] == 48);
  // Both runs together, as the daemon counted them.
  const Json stats = Json::parse(daemon.client().get("/atlas/v1/stats")->body);
  CHECK(stats["engines"][0]["tokens"]["generated"] == 96);
  CHECK(stats["engines"][0]["requests"]["finished"] == 12);
}

TEST_CASE("atlas-bench: socket says what failed, and ends with 1") {
  LiveDaemon daemon;
  const std::vector<std::string> arguments = {"atlas-bench",   "socket",     "--socket",
                                              daemon.socket(), "--requests", "2",
                                              "--max-tokens",  "5000"};
  const Ran nobody = run_program(arguments);
  CHECK(nobody.code == 1);
  CHECK(nobody.err.find("no daemon answers") != std::string::npos);
  daemon.start();
  daemon.wait_ready();
  const Ran too_long = run_program(arguments);
  CHECK(too_long.code == 1);
  CHECK_MESSAGE(too_long.err.find("atlas-bench: ") == 0, too_long.err);
}

TEST_CASE("atlas-bench: overhead runs beside a daemon that serves the same model, and no other") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  const auto overhead = [&](const std::string& model) {
    return run_program({"atlas-bench", "overhead", "--socket", daemon.socket(), "--model", model,
                        "--prompt-tokens", "8", "--generate", "12", "--repeat", "2", "--json"});
  };
  const Ran ran = overhead(daemon.file("tiny.gguf"));
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const Json json = Json::parse(ran.out);
  CHECK(json["benchmark"] == "overhead");
  CHECK(json["added_us_a_token"].is_number());
  CHECK(json["socket_us_a_token"].size() == 2);
  CHECK(json["engine_us_a_token"].size() == 2);
  for (const Json& time : json["socket_us_a_token"]) CHECK(time.get<double>() > 0);
  TinyLlama other;
  other.dtype = ATLAS_F32;
  write_tiny_llama_gguf(other, daemon.file("other.gguf"));
  const Ran wrong = overhead(daemon.file("other.gguf"));
  CHECK(wrong.code == 1);
  CHECK_MESSAGE(wrong.err.find("the daemon serves") != std::string::npos, wrong.err);
}

TEST_SUITE_END();
