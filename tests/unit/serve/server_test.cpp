// Starting and stopping: socket files, addresses, inherited sockets, draining.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "tests/unit/serve/fixture.h"

using namespace atlas;
using namespace atlas::serve;
using namespace atlas::serve::testing;
using namespace std::chrono_literals;

TEST_SUITE_BEGIN("serve");

namespace {

Status start_with(const ServerOptions& options) {
  FakeControl control;
  Server server(options, control);
  return server.start();
}

const std::string kStream =
    HttpClient::text_of("POST", "/v1/completions", R"({"prompt":"x","stream":true})");

}  // namespace

TEST_CASE("server: the socket file has the mode asked for and goes with the server") {
  std::string path;
  {
    Fixture fixture([](ServerOptions& options) { options.socket_mode = 0620; });
    path = fixture.socket_path();
    struct stat file {};
    REQUIRE(stat(path.c_str(), &file) == 0);
    CHECK((file.st_mode & 0777) == 0620);
    CHECK(fixture.server->addresses() == std::vector<std::string>{path});
    fixture.server.reset();
    CHECK(stat(path.c_str(), &file) != 0);
  }
}

TEST_CASE("server: a socket file that nobody listens on is replaced, others are left alone") {
  Fixture fixture;
  const std::string stale = fixture.folder + "/stale";
  {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, stale.c_str(), sizeof(address.sun_path) - 1);
    REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    close(fd);
  }
  CHECK(start_with({.socket_path = stale}).ok());

  const Status busy = start_with({.socket_path = fixture.socket_path()});
  CHECK(busy.code() == Code::kAlreadyExists);
  CHECK(busy.message().find("another process listens") != std::string::npos);
  CHECK(fixture.client().get("/health").status == 200);

  const std::string file = fixture.folder + "/file";
  std::ofstream(file) << "precious";
  const Status not_socket = start_with({.socket_path = file});
  CHECK(not_socket.code() == Code::kAlreadyExists);
  std::string kept;
  std::ifstream(file) >> kept;
  CHECK(kept == "precious");
}

TEST_CASE("server: addresses that cannot be are refused with their reason") {
  CHECK(start_with({}).code() == Code::kInvalidArgument);
  CHECK(start_with({.socket_path = std::string(200, 'a')}).code() == Code::kInvalidArgument);
  const Status no_folder = start_with({.socket_path = "/no/such/folder/s"});
  CHECK(no_folder.code() == Code::kNotFound);
  CHECK(no_folder.message().find("make '/no/such/folder'") != std::string::npos);
  CHECK(start_with({.socket_path = "/tmp/atlas-x", .socket_group = "no such group"}).code() ==
        Code::kInvalidArgument);
  CHECK(start_with({.socket_path = "/tmp/atlas-x", .socket_mode = 01777}).code() ==
        Code::kInvalidArgument);
  const Status open = start_with({.tcp = TcpAddress{"0.0.0.0", 0}});
  CHECK(open.code() == Code::kInvalidArgument);
  CHECK(open.message().find("API key") != std::string::npos);
  CHECK(start_with({.tcp = TcpAddress{"127.0.0.1", 0}}).ok());
  CHECK(start_with({.tcp = TcpAddress{"no.such.host.invalid", 1}}).code() ==
        Code::kInvalidArgument);
  Fixture fixture([](ServerOptions& options) { options.tcp = TcpAddress{"127.0.0.1", 0}; });
  const Status taken = start_with({.tcp = TcpAddress{"127.0.0.1", fixture.server->tcp_port()}});
  CHECK(taken.code() == Code::kAlreadyExists);
}

TEST_CASE("server: sockets of the service manager are used, and their files stay") {
  Fixture other;  // for its folder
  const std::string path = other.folder + "/inherited";
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  CHECK(start_with({.inherited_fds = {dup(fd)}}).code() == Code::kInvalidArgument);
  REQUIRE(listen(fd, 5) == 0);
  {
    FakeControl control;
    Server server({.socket_path = other.folder + "/unused", .inherited_fds = {fd}}, control);
    REQUIRE(server.start().ok());
    CHECK(server.addresses() == std::vector<std::string>{path});
    CHECK(HttpClient::unix_socket(path).get("/health").status == 200);
  }
  struct stat file {};
  CHECK(stat(path.c_str(), &file) == 0);
}

TEST_CASE("server: stopping lets answers finish and takes no new connections") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    return speak({"a", "b", "c", "d"}, spec, 50ms);
  });
  HttpClient busy = fixture.client();
  HttpClient idle = fixture.client();
  CHECK(idle.get("/health").status == 200);
  busy.send(kStream);
  CHECK(busy.read_head().status == 200);
  std::thread stopping([&] { CHECK(fixture.server->stop(10s) == 0); });
  std::string body;
  std::string chunk;
  while (busy.read_chunk(chunk) && !chunk.empty()) body += chunk;
  CHECK(events_of(body).back() == "[DONE]");
  CHECK(busy.at_end());
  CHECK(idle.at_end());
  stopping.join();
  CHECK_THROWS(fixture.client());
}

TEST_CASE("server: at the deadline what still runs is cancelled") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    return speak({"a", "b"}, spec, 1h);
  });
  HttpClient busy = fixture.client();
  busy.send(kStream);
  REQUIRE(eventually([&] { return fixture.engine->specs().size() == 1; }));
  const auto before = std::chrono::steady_clock::now();
  CHECK(fixture.server->stop(100ms) == 1);
  CHECK(std::chrono::steady_clock::now() - before < 5s);
  CHECK(fixture.engine->cancelled() == 1);
}

TEST_CASE("server: an engine may go on talking after the server is gone") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    return speak(std::vector<std::string>(100, "a"), spec, 1ms);
  });
  HttpClient client = fixture.client();
  client.send(kStream);
  CHECK(client.read_head().status == 200);
  fixture.server.reset();
  std::this_thread::sleep_for(50ms);
}

TEST_CASE("server: requests prepared while a swap changes the tokenizer are prepared again") {
  Fixture fixture;
  std::atomic<bool> done = false;
  std::thread swapping([&] {
    while (!done) {
      fixture.engine->set_model(make_model({.chat_template = kTemplate}));
      std::this_thread::sleep_for(1ms);
    }
  });
  HttpClient client = fixture.client();
  for (int i = 0; i < 50; ++i) {
    CHECK(client.post("/v1/completions", R"({"prompt":"xyz"})").status == 200);
  }
  done = true;
  swapping.join();
}

TEST_SUITE_END();
