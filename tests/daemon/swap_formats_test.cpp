// Swaps of one model between weight formats on a live daemon: checkpoints that atlas-quantize made,
// clients that stream meanwhile, and every answer that of the format it began with.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/live_daemon.h"
#include "tests/support/run_program.h"

using namespace atlas;
using namespace atlas::testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("daemon");

namespace {

/// Long enough to be under way while another generation is loaded.
const std::string kLong =
    R"("prompt":"the cat rings","max_tokens":300,"temperature":0,"ignore_eos":true)";

/// A tiny llama that every format can hold without padding, and what atlas-quantize makes of it.
class Formats {
 public:
  Formats() {
    TinyLlama model;
    model.hidden = 128;
    model.head_dim = 32;
    model.intermediate = 256;
    model.vocab = 384;
    model.max_positions = 2048;
    fs::create_directory(path("bf16"));
    write_tiny_llama_folder(model, path("bf16"));
    std::string text;
    for (int i = 0; i < 40; ++i) text += fmt::format("the {} rings in the {} cat ", i, i * i % 97);
    std::ofstream(path("text.txt")) << text;
    make("exl3", {"--bits", "2", "--calibration", path("text.txt"), "--calibration-tokens", "512"});
    make("nvfp4", {"--scales", "max"});
    make("fp8", {});
  }
  std::string path(const std::string& name) const { return folder_.file(name); }
  std::string yaml(const std::string& format) const {
    return fmt::format("model: {{path: {}, name: tiny}}\n{}", path(format), kEngine);
  }

 private:
  static constexpr const char* kEngine =
      "engine: {max_sequences: 4, cache_tokens: 8192, reserve_bytes: 0}\n";
  void make(const std::string& format, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"atlas-quantize", "--model",  path("bf16"), "--out",
                                          path(format),     "--format", format,       "--quiet",
                                          "--threads",      "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ran ran = run_program(arguments);
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
  }
  TempDir folder_;
};

/// Made once, for all cases.
const Formats& made_formats() {
  static const Formats formats;
  return formats;
}

LiveDaemon::Options serving(const Formats& formats, const std::string& format) {
  LiveDaemon::Options options;
  options.own_model = false;
  options.yaml = formats.yaml(format);
  return options;
}

std::string answer(const LiveDaemon& daemon) {
  const auto response = daemon.complete(kLong);
  REQUIRE_MESSAGE(response, response.error().message());
  REQUIRE_MESSAGE(response->status == 200, response->body);
  return completion_text(*response);
}

/// What a daemon answers that was started with the format.
std::string answer_of(const Formats& formats, const std::string& format) {
  LiveDaemon daemon(serving(formats, format));
  daemon.start();
  daemon.wait_ready();
  return answer(daemon);
}

/// One streamed answer, on a thread of its own.
struct Stream {
  std::string text, finish;
  std::atomic<int> events{0};
  std::jthread thread;

  explicit Stream(const LiveDaemon& daemon) {
    thread = std::jthread([this, &daemon] {
      (void)daemon.client().stream(
          "/v1/completions", R"({"model":"tiny","stream":true,)" + kLong + "}",
          [this](std::string_view data) {
            const Json json = Json::parse(data, nullptr, false);
            if (json.is_object() && !json.value("choices", Json::array()).empty()) {
              const Json& choice = json["choices"][0];
              text += choice.value("text", "");
              if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
            }
            ++events;
            return true;
          });
    });
  }
  void wait_events(int count) const {
    for (int i = 0; i < 4000 && events < count; ++i) std::this_thread::sleep_for(5ms);
    REQUIRE(events >= count);
  }
};

Ran swap_to(const LiveDaemon& daemon, const std::vector<std::string>& set) {
  std::vector<std::string> arguments = {"atlasctl", "--socket", daemon.socket(), "swap"};
  for (const std::string& one : set) arguments.insert(arguments.end(), {"--set", one});
  return run_program(arguments);
}

Json engine_of(const LiveDaemon& daemon) {
  const auto response = daemon.client().get("/atlas/v1/status");
  REQUIRE(response);
  return Json::parse(response->body)["engines"][0];
}

}  // namespace

TEST_CASE("swap: one model goes from format to format while clients stream") {
  const Formats& formats = made_formats();
  std::map<std::string, std::string> expected;
  for (const char* format : {"bf16", "exl3", "nvfp4", "fp8"}) {
    expected[format] = answer_of(formats, format);
    for (const auto& [other, text] : expected) {
      // Else a swap that did nothing would pass.
      if (other != format) CHECK_MESSAGE(text != expected[format], format << " and " << other);
    }
  }
  LiveDaemon daemon(serving(formats, "bf16"));
  daemon.start();
  daemon.wait_ready();
  std::string from = "bf16";
  for (const char* to : {"exl3", "nvfp4", "fp8", "bf16"}) {
    CAPTURE(to);
    Stream first(daemon), second(daemon);
    first.wait_events(2);
    second.wait_events(2);
    const Ran swapped = swap_to(daemon, {"model.path=" + formats.path(to)});
    CHECK_MESSAGE(swapped.code == 0, swapped.err);
    CHECK_MESSAGE(swapped.out.find("weights") != std::string::npos, swapped.out);
    CHECK(answer(daemon) == expected[to]);
    for (Stream* stream : {&first, &second}) {
      stream->thread.join();
      CHECK(stream->finish == "length");
      CHECK(stream->text == expected[from]);
    }
    from = to;
  }
  CHECK(engine_of(daemon)["generation"] == 5);
}

TEST_CASE("swap: a format that cannot be loaded leaves the old one serving, and says why") {
  const Formats& formats = made_formats();
  // What a copy that was cut short, or one with a file from elsewhere, looks like.
  fs::copy(formats.path("exl3"), formats.path("cut"), fs::copy_options::recursive);
  fs::resize_file(formats.path("cut") + "/model.safetensors", 40000);
  fs::copy(formats.path("nvfp4"), formats.path("mixed"));
  fs::copy_file(formats.path("fp8") + "/config.json", formats.path("mixed") + "/config.json",
                fs::copy_options::overwrite_existing);
  LiveDaemon daemon(serving(formats, "exl3"));
  daemon.start();
  daemon.wait_ready();
  const std::string before = answer(daemon);
  const auto refused = [&](const std::vector<std::string>& set) {
    Stream stream(daemon);
    stream.wait_events(2);
    const Ran ran = swap_to(daemon, set);
    CHECK(ran.code == 1);
    stream.thread.join();
    CHECK(stream.text == before);
    CHECK(engine_of(daemon)["generation"] == 1);
    return ran.err;
  };
  const std::string cut = refused({"model.path=" + formats.path("cut")});
  CHECK_MESSAGE(cut.find("model.safetensors") != std::string::npos, cut);
  const std::string mixed = refused({"model.path=" + formats.path("mixed")});
  CHECK_MESSAGE(mixed.find("fp8") != std::string::npos, mixed);
  CHECK_MESSAGE(mixed.find("nvfp4") != std::string::npos, mixed);
  // Nothing falls back: formats whose plugin the settings do not name are refused.
  const std::string missing =
      refused({"model.path=" + formats.path("nvfp4"), "plugins.quant=[bf16, exl3]"});
  CHECK_MESSAGE(missing.find("no quantization plugin") != std::string::npos, missing);
  const std::string absent = refused({"model.path=" + formats.path("nowhere")});
  CHECK_MESSAGE(absent.find("nowhere") != std::string::npos, absent);
  // It is the old one's memory and state that are left alone, not only its name.
  const Ran good = swap_to(daemon, {"model.path=" + formats.path("fp8")});
  CHECK_MESSAGE(good.code == 0, good.err);
  CHECK(swap_to(daemon, {"model.path=" + formats.path("exl3")}).code == 0);
  CHECK(answer(daemon) == before);
}

TEST_SUITE_END();
