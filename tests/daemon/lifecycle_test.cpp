// The life of a real atlasd: start, readiness, signals, restart, what systemd is told.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/live_daemon.h"

using namespace atlas;
using namespace atlas::testing;
using namespace std::chrono_literals;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("daemon");

namespace {

const std::string kLong =
    R"("prompt":[5,6,7],"max_tokens":1800,"stream":true,"logit_bias":{"0":-100,"1":-100,"2":-100})";

/// Streams a long answer on a thread; counts events, keeps how it ended.
struct Stream {
  std::atomic<int> events{0};
  std::string last, finish;
  std::optional<Status> failure;
  std::jthread thread;

  explicit Stream(const LiveDaemon& daemon, const std::string& fields = kLong) {
    thread = std::jthread([this, &daemon, fields] {
      const auto result = daemon.client().stream(
          "/v1/completions", "{\"model\":\"tiny\"," + fields + "}", [this](std::string_view data) {
            last = data;
            const Json json = Json::parse(data, nullptr, false);
            if (json.is_object() && json.contains("choices") && !json["choices"].empty() &&
                json["choices"][0]["finish_reason"].is_string()) {
              finish = json["choices"][0]["finish_reason"];
            }
            ++events;
            return true;
          });
      if (!result) failure = result.error();
    });
  }
  void wait_events(int count) const {
    for (int i = 0; i < 4000 && events < count; ++i) std::this_thread::sleep_for(5ms);
    REQUIRE(events >= count);
  }
};

/// A datagram socket like systemd's, and what came in.
class NotifySocket {
 public:
  explicit NotifySocket(std::string path) : path_(std::move(path)) {
    fd_ = ::socket(AF_UNIX, SOCK_DGRAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    const timeval timeout{0, 100000};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  }
  ~NotifySocket() { ::close(fd_); }
  /// Reads until a message contains `text`; false after `timeout`.
  bool wait_for(const std::string& text, std::chrono::seconds timeout = 20s) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (std::chrono::steady_clock::now() < deadline) {
      if (all_.find(text) != std::string::npos) return true;
      char buffer[4096];
      const ssize_t count = ::recv(fd_, buffer, sizeof(buffer), 0);
      if (count > 0) all_ += std::string(buffer, static_cast<size_t>(count)) + "\n";
    }
    return false;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_, all_;
  int fd_ = -1;
};

}  // namespace

TEST_CASE("daemon: starts, answers, and ends with 0 on SIGTERM") {
  for (const std::string platform : {"cpu", "imitation"}) {
    CAPTURE(platform);
    LiveDaemon daemon({.platform = platform});
    daemon.start();
    daemon.wait_ready();
    const auto response = daemon.complete(R"("prompt":"Hello","max_tokens":8,"temperature":0)");
    REQUIRE(response);
    CHECK(response->status == 200);
    daemon.signal(SIGTERM);
    CHECK(daemon.wait_exit() == 0);
    CHECK(::access(daemon.socket().c_str(), F_OK) != 0);
  }
}

TEST_CASE("daemon: both platforms give the same bytes") {
  std::vector<std::string> texts;
  for (const std::string platform : {"cpu", "imitation"}) {
    LiveDaemon daemon({.platform = platform});
    daemon.start();
    daemon.wait_ready();
    std::string all;
    for (int seed = 0; seed < 6; ++seed) {
      const auto response = daemon.complete(fmt::format(
          R"("prompt":"The same bytes","max_tokens":40,"temperature":1.0,"seed":{})", seed));
      REQUIRE(response);
      all += completion_text(*response) + "|";
    }
    texts.push_back(all);
  }
  CHECK(texts[0].size() > 60);
  CHECK(texts[0] == texts[1]);
}

TEST_CASE("daemon: SIGTERM lets a running answer end, and refuses new ones meanwhile") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  Stream stream(daemon);
  stream.wait_events(3);
  daemon.signal(SIGTERM);
  CHECK(daemon.wait_exit() == 0);
  stream.thread.join();
  CHECK(stream.finish == "length");
  CHECK(stream.last == "[DONE]");
}

TEST_CASE("daemon: a drain past its deadline cancels what runs and still ends with 0") {
  LiveDaemon daemon(
      {.yaml = "", .platform = "imitation", .platform_options = {{"delay_us", "30000"}}});
  daemon.start();
  daemon.wait_ready();
  Stream stream(daemon);
  stream.wait_events(2);
  const auto drained = daemon.client().post("/atlas/v1/drain", R"({"timeout_s":1})");
  REQUIRE(drained);
  CHECK(drained->status == 200);
  CHECK(daemon.wait_exit(15s) == 0);
  stream.thread.join();
  CHECK(stream.finish != "stop");
}

TEST_CASE("daemon: SIGTERM after a drain that was asked for lets it go on; the next one ends it") {
  const LiveDaemon::Options slow{
      .yaml = "", .platform = "imitation", .platform_options = {{"delay_us", "8000"}}};
  const std::string answer =
      R"("prompt":[5,6,7],"max_tokens":700,"stream":true,"ignore_eos":true,"temperature":0)";
  for (const int signals : {1, 2}) {
    CAPTURE(signals);
    LiveDaemon daemon(slow);
    daemon.start();
    daemon.wait_ready();
    Stream stream(daemon, answer);
    stream.wait_events(2);
    REQUIRE(daemon.client().post("/atlas/v1/drain", R"({"timeout_s":15})"));
    std::this_thread::sleep_for(300ms);  // the supervisor looks every 100 ms
    for (int i = 0; i < signals; ++i) {
      daemon.signal(SIGTERM);
      std::this_thread::sleep_for(300ms);
    }
    CHECK(daemon.wait_exit() == 0);
    stream.thread.join();
    CHECK((stream.finish == "length") == (signals == 1));
  }
}

TEST_CASE("daemon: a second SIGTERM ends it at once") {
  LiveDaemon daemon(
      {.yaml = "", .platform = "imitation", .platform_options = {{"delay_us", "20000"}}});
  daemon.start();
  daemon.wait_ready();
  Stream stream(daemon);
  stream.wait_events(2);
  daemon.signal(SIGTERM);
  std::this_thread::sleep_for(300ms);
  const auto before = std::chrono::steady_clock::now();
  daemon.signal(SIGTERM);
  CHECK(daemon.wait_exit(8s) == 0);
  CHECK(std::chrono::steady_clock::now() - before < 5s);
}

TEST_CASE(
    "daemon: after kill -9 in mid-stream the client sees a broken stream, and a new start works") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  Stream stream(daemon);
  stream.wait_events(3);
  daemon.signal(SIGKILL);
  CHECK(daemon.wait_exit() == 128 + SIGKILL);
  stream.thread.join();
  CHECK(stream.finish.empty());
  CHECK(::access(daemon.socket().c_str(), F_OK) == 0);  // left behind, and taken over below
  daemon.start();
  daemon.wait_ready();
  const auto response = daemon.complete(R"("prompt":"again","max_tokens":4)");
  REQUIRE(response);
  CHECK(response->status == 200);
}

TEST_CASE("daemon: a second one on the same socket says so and leaves the first alone") {
  LiveDaemon first;
  first.start();
  first.wait_ready();
  LiveDaemon second({.yaml = fmt::format("server: {{socket: {{path: {}}}}}\n", first.socket())});
  second.start();
  CHECK(second.wait_exit() == 1);
  CHECK(second.log().find(first.socket()) != std::string::npos);
  CHECK(first.client().get("/ready")->status == 200);
}

TEST_CASE("daemon: bad settings, models and plugins end the start with one clear line") {
  struct Case {
    std::string yaml, expected;
    int code;
  };
  const std::vector<Case> cases = {
      {"model: {path: /no/such/model.gguf}\n", "/no/such/model.gguf", 1},
      {"model: {path: /etc/hostname}\n", "/etc/hostname", 1},
      {"model: {path: MODEL}\nplugins: {quant: [nope]}\n", "quant_nope.so", 1},
      {"model: {path: MODEL}\nplugins: {quant: [bf16]}\n", "no quantization plugin reads module",
       1},
      {"model: {path: MODEL}\nplugins: {attention: []}\n", "attention backend 'gqa'", 1},
      {"model: {path: MODEL}\nengine: {cache_tokens: 64}\n", "engine.cache_tokens", 1},
      {"model: {path: MODEL}\nengine: {reserve_bytes: 900000 GiB}\n", "MiB are free", 1},
      {"model: {path: MODEL}\nengin: {}\n", "the nearest is 'engine", 1},
      {"model: {path: MODEL}\nengine: {context_tokens: 1}\n", "a context of 1 token", 1},
  };
  for (const Case& one : cases) {
    CAPTURE(one.yaml);
    LiveDaemon daemon;
    std::string yaml = one.yaml;
    if (const size_t at = yaml.find("MODEL"); at != std::string::npos)
      yaml.replace(at, 5, daemon.file("tiny.gguf"));
    LiveDaemon wrong({.yaml = yaml, .own_model = false});
    wrong.start();
    CHECK(wrong.wait_exit() == one.code);
    CHECK_MESSAGE(wrong.log().find(one.expected) != std::string::npos, wrong.log());
  }
}

TEST_CASE("daemon: a wrong platform option names itself and the known ones") {
  LiveDaemon daemon({.platform_options = {{"threds", "2"}}});
  daemon.start();
  CHECK(daemon.wait_exit() == 1);
  CHECK(daemon.log().find("threds") != std::string::npos);
  CHECK(daemon.log().find("threads") != std::string::npos);
}

TEST_CASE("daemon: a device that is lost ends requests with an error and the daemon with 1") {
  LiveDaemon daemon({.platform = "imitation", .platform_options = {{"lose_at", "40"}}});
  daemon.start();
  daemon.wait_ready();
  Stream stream(daemon);
  CHECK(daemon.wait_exit() == 1);
  stream.thread.join();
  CHECK(stream.finish != "stop");
  CHECK(stream.finish != "length");
  CHECK(daemon.log().find("device") != std::string::npos);
}

TEST_CASE("daemon: systemd is told of loading, readiness, reload, watchdog and stop") {
  TempDir folder;
  NotifySocket notify(folder.file("notify"));
  LiveDaemon daemon({.environment = {"NOTIFY_SOCKET=" + notify.path(), "WATCHDOG_USEC=1000000"}});
  daemon.start();
  CHECK(notify.wait_for("READY=1"));
  CHECK(notify.wait_for("STATUS=serving generation"));
  CHECK(notify.wait_for("WATCHDOG=1"));
  daemon.signal(SIGHUP);
  CHECK(notify.wait_for("RELOADING=1"));
  daemon.signal(SIGTERM);
  CHECK(notify.wait_for("STOPPING=1"));
  CHECK(daemon.wait_exit() == 0);
}

TEST_CASE("daemon: a hanging device stops the watchdog's food and ends in exit 1") {
  TempDir folder;
  NotifySocket notify(folder.file("notify"));
  LiveDaemon daemon({.yaml = "engine: {step_deadline_s: 2}\n",
                     .platform = "imitation",
                     .platform_options = {{"hang_at", "30"}, {"patience_ms", "500"}},
                     .environment = {"NOTIFY_SOCKET=" + notify.path(), "WATCHDOG_USEC=600000"}});
  daemon.start();
  CHECK(notify.wait_for("READY=1"));
  Stream stream(daemon);
  CHECK(daemon.wait_exit() == 1);
  CHECK(daemon.log().find("the device hangs") != std::string::npos);
}

TEST_CASE("daemon: it takes a socket that systemd has opened, and leaves its file") {
  TempDir folder;
  const std::string path = folder.file("passed.sock");
  LiveDaemon daemon({.listen_socket = path});
  daemon.start();
  const tools::Client client(path);
  bool ready = false;
  for (int i = 0; i < 2000 && !ready; ++i) {
    const auto response = client.get("/ready");
    ready = response && response->status == 200;
    std::this_thread::sleep_for(5ms);
  }
  CHECK_MESSAGE(ready, daemon.log());
  daemon.signal(SIGTERM);
  CHECK(daemon.wait_exit() == 0);
  CHECK(::access(path.c_str(), F_OK) == 0);
}

TEST_SUITE_END();
